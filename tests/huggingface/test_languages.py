"""Multilingual models, BART and PEGASUS: text in, text out, with the ids that transformers puts around texts."""

import json

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from contracts import refuses
from families import ENCODER_DECODERS, torch_model
from pieces import T5_IDS, TEXTS, described, train_pieces

from keras_transformer.cli.convert import convert
from keras_transformer.cli.main import main
from keras_transformer.huggingface import (
    FAMILIES,
    from_huggingface,
    to_huggingface,
    tokenizers_from_huggingface,
)
from keras_transformer.serving import Translator, load

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
# Without the line's end: where a text ends with a blank, transformers adds a piece that SentencePiece does not.
TEXTS = [text.rstrip() for text in TEXTS]

CASES = {
    # folder: model_type, class, source's and target's language
    "mbart": ("mbart", "MBartTokenizer", "de_DE", "ko_KR"),
    "mbart50": ("mbart", "MBart50Tokenizer", "de_DE", "ko_KR"),
    "nllb": ("m2m_100", "NllbTokenizer", "deu_Latn", "kor_Hang"),
    "nllb-old": ("m2m_100", "NllbTokenizer", "deu_Latn", "kor_Hang"),
    "m2m_100": ("m2m_100", "M2M100Tokenizer", "de", "ko"),
}
EACH = pytest.mark.parametrize("name", CASES)
NLLB = ["deu_Latn", "eng_Latn", "kor_Hang"]


def languages_of(name):
    """The tokens of the languages, in the order of transformers."""
    from transformers.models.m2m_100 import tokenization_m2m_100 as m2m_100
    from transformers.models.mbart import tokenization_mbart as mbart
    from transformers.models.mbart50 import tokenization_mbart50 as mbart50

    if name == "m2m_100":
        return [f"__{code}__" for code in m2m_100.FAIRSEQ_LANGUAGE_CODES["m2m100"]]
    known = {"mbart": mbart, "mbart50": mbart50}
    return known[name].FAIRSEQ_LANGUAGE_CODES if name in known else NLLB


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    """A function from a case to a random checkpoint with the files of a tokenizer."""
    parent = tmp_path_factory.mktemp("languages")

    def folder_of(name):
        return parent / name if (parent / name).exists() else written(name, parent / name)

    return folder_of


def written(name, folder):
    model_type, kind, *_ = CASES[name]
    config = {**ENCODER_DECODERS[f"{model_type}-uneven"], "vocab_size": 240, "max_position_embeddings": 64}
    torch_model(config, 3).save_pretrained(folder)
    kind_of_pieces = "bpe" if model_type == "m2m_100" else "unigram"
    train_pieces(folder / "sentencepiece.bpe.model", model_type=kind_of_pieces)
    options = {"tokenizer_class": kind, **({"legacy_behaviour": True} if name == "nllb-old" else {})}
    (folder / "tokenizer_config.json").write_text(json.dumps(options))
    listed = {"additional_special_tokens": languages_of(name)}
    (folder / "special_tokens_map.json").write_text(json.dumps(listed))
    if name == "m2m_100":
        processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "sentencepiece.bpe.model"))
        pieces = [processor.IdToPiece(i) for i in reversed(range(3, processor.GetPieceSize()))]
        ids = {piece: i for i, piece in enumerate(["<s>", "<pad>", "</s>", "<unk>", *pieces])}
        (folder / "vocab.json").write_text(json.dumps(ids))
    return folder


def framed(name, ids, language_id):
    """The ids of a source as transformers' tokenizers frame them."""
    return [*ids, 2, language_id] if name in ("mbart", "nllb-old") else [language_id, *ids, 2]


@EACH
def test_pieces_and_languages_have_the_ids_of_transformers(name, folder_of):
    folder = folder_of(name)
    _, kind, source, _ = CASES[name]
    (tokenizer,) = tokenizers_from_huggingface(folder)
    expected = getattr(transformers, kind).from_pretrained(folder)
    assert tokenizer.tokenize(TEXTS).to_list() == expected(TEXTS, add_special_tokens=False)["input_ids"]
    assert (tokenizer.bos_id, tokenizer.pad_id, tokenizer.eos_id, tokenizer.unk_id) == (0, 1, 2, 3)
    if name.startswith("nllb"):  # transformers reads NLLB's languages from a tokenizer.json alone
        return
    assert tokenizer.vocab_size == len(expected)
    expected.src_lang = source
    ids = tokenizer.pieces(range(tokenizer.vocab_size))
    language_id = ids.index(f"__{source}__" if name == "m2m_100" else source)
    for text, row in zip(TEXTS[:-1], tokenizer.tokenize(TEXTS[:-1]).to_list(), strict=True):
        assert expected.encode(text) == framed(name, row, language_id)


def generated(model, source, **options):
    """What transformers generates for a row of ids, without the padding after its end."""
    options |= {"do_sample": False, "num_beams": 1, "max_new_tokens": 10, "forced_eos_token_id": None}
    return model.generate(torch.tensor([source]), **options)[0].tolist()


def texts_of(tokenizer, rows, skipped):
    return [tokenizer.detokenize([row[skipped:]])[0].numpy().decode() for row in rows]


@pytest.mark.slow
@EACH
def test_a_multilingual_folder_translates_as_transformers_does(name, folder_of, tmp_path):
    folder = folder_of(name)
    model_type, _, source, target = CASES[name]
    options = ["--source-language", source, "--target-language", target]
    assert main(["convert", str(folder), str(tmp_path / "own"), *options]) == 0
    translator = load(tmp_path / "own").changed(constraints=(), max_length=10)
    assert type(translator) is Translator
    tokenizer = translator.source_tokenizer
    pattern = "__{}__" if name == "m2m_100" else "{}"
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    source_id, target_id = (pieces.index(pattern.format(language)) for language in (source, target))
    model = getattr(transformers, FAMILIES[model_type].architectures[0]).from_pretrained(folder)
    model.generation_config.max_length = None
    start = {"decoder_start_token_id": target_id} if name == "mbart" else {"forced_bos_token_id": target_id}
    expected = []
    for ids in tokenizer.tokenize(TEXTS[:-1]).to_list():
        expected.append(generated(model, framed(name, ids, source_id), **start))
    found = translator.translate(TEXTS)
    # Behind eos, or the language, begin the tokens of a text.
    assert found == [*texts_of(tokenizer, expected, 1 if name == "mbart" else 2), ""]
    assert len(set(found)) > 1


@pytest.mark.slow
def test_an_export_holds_the_languages(folder_of, tmp_path):
    languages = {"source_language": "deu_Latn", "target_language": "kor_Hang"}
    translator = convert(folder_of("nllb"), tmp_path / "own", **languages)
    translator = translator.changed(constraints=(), max_length=8)
    translator.export(tmp_path / "export")
    signatures = tf.saved_model.load(str(tmp_path / "export" / "1")).signatures
    answer = signatures["serving_default"](text=tf.constant(TEXTS))
    translations = [text.decode() for text in answer["translation"].numpy()]
    assert translations == translator.translate(TEXTS)
    scored = signatures["score"](text=tf.constant(TEXTS), target=answer["translation"])
    language = scored["target_pieces"].numpy()[:, 0]
    assert language.tolist() == [b"kor_Hang"] * 4 + [b""]
    np.testing.assert_allclose(answer["score"].numpy()[-1], 0)


@pytest.mark.slow
def test_the_score_of_a_translation_is_that_of_the_search(folder_of, tmp_path):
    """The ids around texts are the same in both."""
    languages = {"source_language": "de_DE", "target_language": "ko_KR"}
    translator = convert(folder_of("mbart50"), tmp_path / "own", **languages)
    signatures = translator.changed(constraints=(), max_length=6).signatures([8])
    texts = tf.constant(TEXTS[:2])
    source, _ = signatures._tokenize(texts)
    tokens, _, scores, _ = signatures._search(source)
    score, _, _ = signatures._score(source, tokens[:, 0])
    np.testing.assert_allclose(score, scores[:, 0], rtol=1e-5)


@pytest.mark.parametrize(("options", "expected"), [
    ({"source_language": "deu_Latn"}, "`target_language` must be a language of the checkpoint: deu_Latn, eng"),
    ({"target_language": "deu_Latn"}, "`source_language` must be a language"),
    ({"source_language": "German", "target_language": "deu_Latn"}, "source_language='German'"),
])  # fmt: skip
def test_a_language_that_is_missing_is_asked_for(options, expected, folder_of, tmp_path):
    refuses(expected, convert, folder_of("nllb"), tmp_path / "own", **options)
    assert not (tmp_path / "own").exists()


def test_a_checkpoint_without_the_names_of_its_languages_is_refused(folder_of, tmp_path):
    for name in ("config.json", "sentencepiece.bpe.model"):
        (tmp_path / name).write_bytes((folder_of("nllb") / name).read_bytes())
    refuses("must name its languages", tokenizers_from_huggingface, tmp_path)


def test_the_pieces_of_pegasus_come_after_those_of_its_pretraining(tmp_path):
    train_pieces(described(tmp_path, "pegasus") / "spiece.model", **T5_IDS)
    expected = transformers.PegasusTokenizer.from_pretrained(tmp_path)
    (tokenizer,) = tokenizers_from_huggingface(tmp_path)
    assert (tokenizer.pad_id, tokenizer.eos_id, tokenizer.unk_id) == (0, 1, 105)
    assert tokenizer.vocab_size == len(expected)
    found = tokenizer.tokenize(TEXTS).to_list()
    assert found == expected(TEXTS, add_special_tokens=False)["input_ids"]
    known = [ids for ids in found if ids and 105 not in ids]
    assert [text.decode() for text in tokenizer.detokenize(known).numpy()] == expected.batch_decode(known)
    for offset in (0, 7):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"offset": offset}))
        refuses("offset", tokenizers_from_huggingface, tmp_path)


def test_a_tokenizer_that_is_only_read_is_not_written(folder_of, tmp_path):
    tokenizers = tokenizers_from_huggingface(folder_of("mbart"))
    model = from_huggingface(folder_of("mbart"))
    with pytest.raises(ValueError, match="copy the files of the tokenizer"):
        to_huggingface(model, tmp_path / "new", tokenizers=tokenizers, family="mbart")
    assert not (tmp_path / "new").exists()
