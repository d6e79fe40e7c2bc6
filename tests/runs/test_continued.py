"""Runs that go on training a model of any family, with its ids, its tokenizers and the ids around its texts."""

import dataclasses
import pathlib
import sys

import numpy as np
import pytest
from contracts import refuses

from keras_transformer.models import Transformer
from keras_transformer.runs import Recipe, average, read_history, train
from keras_transformer.runs.initial import RATES, continued
from keras_transformer.serving import Translator
from keras_transformer.text import SentencePieceTokenizer

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "huggingface"))
import families

# One batch: all sources have one length, and no target is longer.
PAIRS = [("the big dog runs", target) for target in ("a dog", "the cat", "is")]
SPECIAL = {
    "marian": ["</s>", "<unk>", *[None] * 28, "<pad>"],
    "t5": ["<pad>", "</s>", "<unk>", *[None] * 28],
    "bart": ["<s>", "<pad>", "</s>", "<unk>", *[None] * 27],
}
RECIPE = Recipe(
    epochs=1, batch_tokens=512, max_length=20, learning_rate=1e-3, warmup_steps=1, label_smoothing=0.0
)
# The ids around texts, as a translator of a multilingual checkpoint has them.
FRAMES = {"m2m_100": {"source_start": (7,), "target_start": (9,)}, "mbart": {"source_end": (2, 7)}}


def quiet(line):
    pass


@pytest.fixture(scope="module")
def pieces():
    return SentencePieceTokenizer.train([text for pair in PAIRS for text in pair] * 9, 31)


def translator_of(case, pieces, **config):
    """A translator with a random model of a family, and with tokenizers of its ids."""
    config = {**families.CONFIGS[case], **config}
    family = config["model_type"]
    own = iter([*pieces.pieces(range(4, pieces.vocab_size)), *(f"unused{i}" for i in range(31))])
    vocabulary = [piece or next(own) for piece in SPECIAL.get(family, SPECIAL["bart"])]
    tokenizers = [SentencePieceTokenizer(pieces.model, vocabulary) for _ in range(1 + (family == "marian"))]
    frame, limit = FRAMES.get(family, {}), 20
    return Translator(families.own_model(config), *tokenizers, max_source_length=limit, **frame)


CASES = ["marian", "t5", "bart", "mbart", "m2m_100", "pegasus"]


@pytest.fixture(scope="module")
def begun(pieces, tmp_path_factory):
    """A function that goes on training a model of a family with one batch, and returns the folder and the batch."""
    made = {}

    def begin(case):
        if case in made:
            return made[case]
        folder = tmp_path_factory.mktemp(case)
        # The run gives a rate to the models that take one.
        rates = {"dropout": 0.0} if case in ("marian", "t5") else {}
        translator = translator_of(case, pieces, **({} if rates else dict.fromkeys(RATES, 0.0)))
        translator.save(folder / "initial")
        recipe = dataclasses.replace(RECIPE, init_from=str(folder / "initial"), **rates)
        trained = train(recipe, PAIRS, folder / "run", say=quiet)
        assert type(trained.model) is type(translator.model) and trained.frame == translator.frame
        assert [t.content for t in trained.tokenizers] == [t.content for t in translator.tokenizers]
        model, sides = translator.model, zip(*PAIRS, strict=True)
        source, target = (
            tokenizer.tokenize(list(side)).to_list()
            for tokenizer, side in zip(translator.tokenizers, sides, strict=True)
        )
        source = [[*translator.source_start, *row, *translator.source_end] for row in source]
        target = [[*translator.target_start, *row, model.eos_id] for row in target]
        batch = [
            np.array([row + [model.pad_id] * (20 - len(row)) for row in rows]) for rows in (source, target)
        ]
        made[case] = folder, translator, batch
        return made[case]

    return begin


def first_loss(folder):
    return float(read_history(folder / "run")[0]["loss"])


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_run_goes_on_with_the_model_its_ids_and_its_tokenizers(case, begun):
    folder, translator, (source, target) = begun(case)
    model, rows = translator.model, len(target)
    shifted = np.concatenate([np.full((rows, 1), model.bos_id), target[:, :-1]], axis=1)
    logits = np.asarray(model({"source": source, "target": shifted}), "float64")
    log_probs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    real = target != model.pad_id
    expected = -np.take_along_axis(log_probs, target[..., None], axis=-1)[..., 0][real].mean()
    assert first_loss(folder) == pytest.approx(expected, abs=1e-4)
    before, after = model.get_weights(), Translator.load(folder / "run").model.get_weights()
    assert any(np.abs(a - b).max() > 1e-5 for a, b in zip(before, after, strict=True))
    assert len(Translator.load(folder / "run").translate(["a dog"])) == 1


@pytest.mark.slow
def test_continued_run_resumes_averages_and_takes_bfloat16(pieces, tmp_path):
    translator_of("bart", pieces).save(tmp_path / "initial")
    recipe = dataclasses.replace(
        RECIPE, init_from=str(tmp_path / "initial"), precision="mixed_bfloat16", learning_rate=1e-2
    )
    train(recipe, PAIRS, tmp_path / "run", say=quiet)
    said = []
    trained = train(dataclasses.replace(recipe, epochs=2), PAIRS, tmp_path / "run", say=said.append)
    assert "1 epochs done, going on" in said[0]
    assert {layer.compute_dtype for layer in trained.model._flatten_layers()} == {"float32"}
    average(tmp_path / "run", say=quiet)
    assert len(Translator.load(tmp_path / "run").translate(["a dog"])) == 1


@pytest.mark.parametrize(
    ("case", "options", "message"),
    [
        ("bart", {"dropout": 0.5}, r"`dropout` must be that of `init_from`, .*dropout=0\.5, init_from=0\.1"),
        ("t5", {"attention_dropout": 0.5}, "`attention_dropout` must be that"),
        ("t5", {"norm": "layer"}, "norm='layer', init_from='rms'"),
        ("marian", {"activation": "gelu"}, "activation='gelu', init_from='silu'"),
        ("bart-uneven", {"num_layers": 3}, r"num_layers=3, init_from=\[1, 3\]"),
    ],
)
def test_an_option_that_the_model_contradicts_is_named(case, options, message, pieces):
    model = translator_of(case, pieces).model
    refuses(message, continued, model, options, "float32")


def test_options_that_agree_and_rates_of_a_transformer_are_taken(pieces):
    model = translator_of("marian", pieces).model
    for option in ({"d_ff": 64}, {"num_heads": 4}, {"normalize_first": True}):
        refuses(f"`{next(iter(option))}` must be that of `init_from`", continued, model, option, "float32")
    options = {"d_model": 18, "num_heads": 3, "activation": "swish", "attention_dropout": 0.5}
    copy = continued(model, options, "mixed_bfloat16")
    assert isinstance(copy, Transformer) and copy.encoder.layers[0].self_attention.dropout == 0.5
    assert {layer.compute_dtype for layer in copy.encoder._flatten_layers()} >= {"bfloat16"}
    np.testing.assert_equal(copy.get_weights(), model.get_weights())


@pytest.mark.slow
def test_weights_of_int8_are_refused(pieces):
    model = translator_of("marian", pieces).model
    model.quantize("int8")
    refuses("must have weights of floats", continued, model, {}, "float32")


def test_more_tokens_than_positions_are_refused(pieces, tmp_path):
    translator_of("bart", pieces).save(tmp_path / "initial")
    recipe = dataclasses.replace(RECIPE, init_from=str(tmp_path / "initial"), max_length=24)
    with pytest.raises(ValueError, match=r"`max_length` must be at most .* 23\. Received: max_length=24"):
        train(recipe, PAIRS, tmp_path / "run", say=quiet)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_adapters_train_alone_and_are_merged_into_the_translator(pieces, tmp_path):
    initial = translator_of("marian", pieces)
    initial.save(tmp_path / "initial")
    recipe = dataclasses.replace(
        RECIPE, init_from=str(tmp_path / "initial"), lora=3, epochs=2, average_last=2
    )
    said = []
    trained = train(recipe, PAIRS, tmp_path / "run", say=said.append)
    assert any("adapters of rank 3" in line for line in said)
    before, after = (
        {weight.path.partition("/")[2]: weight.numpy() for weight in each.model.weights}
        for each in (initial, trained)
    )
    assert before.keys() == after.keys()
    changed = {path for path in before if not np.array_equal(before[path], after[path])}
    assert changed and all(path.endswith("kernel") for path in changed)


@pytest.mark.slow
def test_a_run_of_adapters_resumes_as_if_it_had_never_stopped(pieces, tmp_path):
    translator_of("t5", pieces).save(tmp_path / "initial")
    whole = dataclasses.replace(
        RECIPE, init_from=str(tmp_path / "initial"), lora=3, epochs=3, learning_rate=0.1
    )
    train(whole, PAIRS, tmp_path / "whole", say=quiet)
    train(dataclasses.replace(whole, epochs=1), PAIRS, tmp_path / "parts", say=quiet)
    train(whole, PAIRS, tmp_path / "parts", say=quiet)
    one, other = (Translator.load(tmp_path / name).model.get_weights() for name in ("whole", "parts"))
    np.testing.assert_equal(one, other)


def test_adapters_need_a_model_and_train_without_a_moving_average():
    refuses(r"`lora` needs `init_from`\. Received: lora=8", Recipe, lora=8)
    refuses(r"give `lora` or `ema`, not both", Recipe, lora=8, ema=0.9, init_from="RUN")


def test_a_value_that_the_first_model_decides_is_named_so():
    earlier = dataclasses.asdict(Recipe(init_from="RUN", preset="tiny", activation="gelu", d_model=8))
    changes = Recipe(init_from="RUN", preset="tiny").changes(earlier)
    assert changes == ["d_model: 8, now 128 (preset tiny)", "activation: 'gelu', now that of init_from"]
