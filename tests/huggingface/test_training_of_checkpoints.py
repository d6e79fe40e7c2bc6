"""Checkpoints of every encoder-decoder family: converted, trained, resumed and exported from the command line."""

import collections
import json

import numpy as np
import pytest
import tensorflow as tf
from commands import run
from families import CONFIGS, torch_model
from pieces import LINES, T5_IDS
from test_languages import written as with_languages
from test_tokens_added_to_checkpoints import byte_level, marian, sentence_piece

from keras_transformer.runs import read_history
from keras_transformer.serving import Translator

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

RATES = ("dropout", "attention_dropout", "activation_dropout")  # 0, to compare a loss of training
LENGTHS = {"max_position_embeddings": 64}
ENDS = ("eos_token_id", "forced_eos_token_id")
FILES = {
    # family: transformers' tokenizer, what writes its files, the configuration for that number of ids
    "marian": ("MarianTokenizer", marian, lambda size: {"pad_token_id": size - 1, "decoder_start_token_id": size - 1}),
    "t5": ("T5Tokenizer", sentence_piece("spiece.model", 100, **T5_IDS), lambda size: {}),
    "bart": ("BartTokenizer", byte_level, lambda size: LENGTHS),
    "pegasus": (
        "PegasusTokenizer",
        sentence_piece("spiece.model", 103, **T5_IDS),
        lambda size: {**LENGTHS, "pad_token_id": 0, "decoder_start_token_id": 0, **dict.fromkeys(ENDS, 1)},
    ),
}  # fmt: skip
LANGUAGES = {"mbart": ("MBartTokenizer", "de_DE", "ko_KR"), "m2m_100": ("M2M100Tokenizer", "de", "ko")}
TEXTS = sorted({line.strip() for line in LINES})


def checkpoint(family, folder):
    """Writes a random checkpoint with its tokenizer; returns transformers' tokenizer."""
    if family in LANGUAGES:
        kind, source, target = LANGUAGES[family]
        with_languages(family, folder)
        path = folder / "config.json"
        config = {**json.loads(path.read_text()), **dict.fromkeys(RATES, 0.0)}
        path.write_text(json.dumps(config))
        return getattr(transformers, kind).from_pretrained(folder, src_lang=source, tgt_lang=target)
    kind, write, changes = FILES[family]
    folder.mkdir()
    size = write(folder)
    config = {**CONFIGS[family], "vocab_size": size, **changes(size)}
    config |= dict.fromkeys(["dropout_rate"] if family == "t5" else RATES, 0.0)
    torch_model(config, 3).save_pretrained(folder)
    if family == "bart":  # as in published folders: each text begins with <s>, in transformers' labels too
        path = folder / "generation_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "forced_bos_token_id": 0}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind}))
    return getattr(transformers, kind).from_pretrained(folder)


def one_batch(tokenizer, family):
    """Returns pairs whose sides have the same lengths, so that they are one batch, and their ids."""
    groups = collections.defaultdict(list)
    for source in TEXTS:
        for target in TEXTS:
            ids = tokenizer(source)["input_ids"], tokenizer(text_target=target)["input_ids"]
            if family == "mbart":  # transformers trains it to write the id of the language after its end, too
                ids = ids[0], ids[1][:-1]
            groups[tuple(map(len, ids))].append(((source, target), ids))
    return zip(*max(groups.values(), key=len), strict=True)


def loss_there(folder, ids, start_id):
    """Returns the loss of transformers' model for a batch."""
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, attn_implementation="eager").train()
    source, target = (
        torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in side], True, -100)
        for side in zip(*ids, strict=True)
    )
    real, pad_id = source != -100, model.config.pad_token_id
    shifted = torch.cat([torch.full_like(target[:, :1], start_id), target[:, :-1]], dim=1)
    with torch.no_grad():
        found = model(
            input_ids=torch.where(real, source, pad_id),
            attention_mask=real.long(),
            decoder_input_ids=torch.where(shifted == -100, pad_id, shifted),
            labels=target,
        )
    return float(found.loss)


@pytest.mark.slow
@pytest.mark.parametrize("family", [*FILES, *LANGUAGES])
def test_the_commands_convert_train_resume_and_export_a_checkpoint(family, tmp_path):
    tokenizer = checkpoint(family, tmp_path / "there")
    pairs, ids = one_batch(tokenizer, family)
    (tmp_path / "pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in pairs), encoding="utf-8")
    languages = LANGUAGES.get(family, ())[1:]
    options = zip(("--source-language", "--target-language"), languages, strict=bool(languages))
    words = [word for option in options for word in option]
    code, _, err = run("convert", tmp_path / "there", tmp_path / "own", *words)
    assert code == 0, err
    folder = tmp_path / "run"
    train = ["train", "--pairs", tmp_path / "pairs.tsv", "--output", folder, "--init-from", tmp_path / "own"]
    train += ["--label-smoothing", 0, "--learning-rate", 0.001, "--warmup-steps", 1, "--max-length", 60]
    code, _, err = run(*train, "--epochs", 1)
    assert code == 0 and " 1 steps an epoch" in err, err
    own = Translator.load(tmp_path / "own")
    expected = loss_there(tmp_path / "there", ids, own.model.bos_id)
    assert float(read_history(folder)[0]["loss"]) == pytest.approx(expected, abs=1e-4)
    code, _, err = run(*train, "--epochs", 2)
    assert code == 0 and "1 epochs done, going on" in err, err
    losses = [float(row["loss"]) for row in read_history(folder)]
    assert len(losses) == 2 and losses[1] < losses[0]
    code, _, err = run("export", folder, tmp_path / "export", "--max-length", 12)
    assert code == 0, err
    served = tf.saved_model.load(str(tmp_path / "export" / "1")).signatures["serving_default"]
    found = served(text=tf.constant(TEXTS))["translation"].numpy()
    translator = Translator.load(folder)
    translator = translator.changed(max_length=12)
    assert [text.decode() for text in found] == translator.translate(TEXTS)
    assert not np.array_equal(translator.model.get_weights()[0], own.model.get_weights()[0])
