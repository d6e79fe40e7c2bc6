"""Checkpoints of the newer families, converted and exported: a server's runtime answers as Python does."""

import json

import numpy as np
import pytest
from alone import answers
from families import CONFIGS, LABELS, LLAMA, YARN
from pieces import BYTES, T5_IDS, byte_pieces, sentence_modules, train_pieces, written
from test_adapters_of_peft import QUERY, pair
from test_adapters_of_peft import written as with_adapter
from test_bidirectional_gemma import BOTH
from test_bidirectional_gemma import folder_of as embedding_gemma
from test_sentence_embeddings import MEAN
from test_tags_and_labels import PIECES, TAGS, TOPICS
from test_tags_and_labels import folder_of as with_head
from test_vectors_of_language_models import END, END_ID, RECORDED, template
from test_vectors_of_language_models import folder_of as qwen3_embedding

from keras_transformer.cli.convert import convert
from keras_transformer.serving import load

FAIRSEQ = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
TEXTS = [
    "the dog runs in the park",
    "두 마리 개가 달린다",
    "",
    "naïve 🎉 1,234!",
    "Zwei Hunde",
    "the park " * 30,
]


def sentence_pieces(folder, case, name, tokenizer_class, pieces, **config):
    """Writes a model with a SentencePiece tokenizer, which is trained with the options `pieces`."""
    options = json.dumps({"tokenizer_class": tokenizer_class, "extra_ids": 0, "add_bos_token": True})
    written(folder, {**CONFIGS[case], "vocab_size": 420, **config}, {"tokenizer_config.json": options})
    train_pieces(folder / name, **pieces)


def byte_level(folder, case, **config):
    """Writes a model with a byte-level tokenizer, which names an id for padding that config.json does not name."""
    ids = {"vocab_size": 450, "bos_token_id": END_ID, "eos_token_id": END_ID + 1, "pad_token_id": None}
    options = json.dumps({"eos_token": "<|im_start|>", "pad_token": END})
    files = {"tokenizer.json": json.dumps(RECORDED), "tokenizer_config.json": options}
    written(folder, {**CONFIGS[case], **ids, **config}, files)


def old_byte_level(folder, case, tokenizer_class, **config):
    """Writes a model with the older files of a byte-level tokenizer."""
    vocabulary, merges = byte_pieces()
    options = {"tokenizer_class": tokenizer_class, "unk_token": "<unk>"}
    options |= {"bos_token": "<s>", "eos_token": "</s>"}
    contents = {
        "vocab.json": json.dumps(vocabulary),
        "merges.txt": "#version: 0.2\n" + "\n".join(map(" ".join, merges)),
        "tokenizer_config.json": json.dumps(options),
    }
    written(folder, {**CONFIGS[case], "vocab_size": len(vocabulary), **FAIRSEQ, **config}, contents)


def multilingual_minilm(folder):
    name = "sentencepiece.bpe.model"
    sentence_pieces(folder, "bert-model", name, "XLMRobertaTokenizer", {"model_type": "unigram"})
    sentence_modules(folder, MEAN)


def ernie(folder):
    written(folder, {**CONFIGS["ernie-Model"], "vocab_size": len(PIECES)}, {"vocab.txt": "\n".join(PIECES)})


def adapter(folder):
    config = {**LLAMA, "vocab_size": 420, "bos_token_id": 1, "eos_token_id": 2}
    with_adapter(folder.parent, config, pair(QUERY, 18, 60)).rename(folder)
    train_pieces(folder / "tokenizer.model", vocab_size=400, **BYTES)
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}')


T5 = ("spiece.model", "T5Tokenizer", {**T5_IDS, "model_type": "unigram"})
CAMEMBERT = ("sentencepiece.bpe.model", "CamembertTokenizer", {"model_type": "unigram"})
CAMEMBERT_CLASSES = {"architectures": ["CamembertForSequenceClassification"], **LABELS}
DATA2VEC_CLASSES = {"architectures": ["Data2VecTextForSequenceClassification"], **LABELS}
MADE = {
    "multilingual-minilm": multilingual_minilm,
    "embedding-gemma": lambda folder: embedding_gemma(folder, **BOTH),
    "qwen3-embedding": lambda folder: qwen3_embedding(folder, template("A", END)),
    "ernie": ernie,
    "camembert": lambda folder: sentence_pieces(
        folder, "camembert-Model", *CAMEMBERT, **FAIRSEQ, **CAMEMBERT_CLASSES
    ),
    "data2vec-text": lambda folder: old_byte_level(
        folder, "data2vec-text-Model", "RobertaTokenizer", **DATA2VEC_CLASSES
    ),
    "tags": lambda folder: with_head(folder, "BertForTokenClassification", TAGS),
    "labels": lambda folder: with_head(folder, "BertForSequenceClassification", TOPICS),
    "mt5": lambda folder: sentence_pieces(folder, "mt5", *T5),
    "umt5": lambda folder: sentence_pieces(folder, "umt5", *T5),
    "smollm2": lambda folder: old_byte_level(folder, "llama-tied", "GPT2Tokenizer"),
    "smollm3": lambda folder: byte_level(folder, "smollm3"),
    "yarn": lambda folder: byte_level(folder, "qwen2", rope_parameters=YARN),
    "ministral": lambda folder: byte_level(folder, "ministral"),
    "olmo2": lambda folder: byte_level(folder, "olmo2"),
    "adapter": adapter,
}


@pytest.mark.slow
@pytest.mark.parametrize("family", MADE)
def test_an_export_answers_as_python_does(family, tmp_path):
    MADE[family](tmp_path / "model")
    convert(tmp_path / "model", tmp_path / "own")
    servable = load(tmp_path / "own")
    if "max_length" in servable.arguments:
        servable = servable.changed(max_length=5)
    path = servable.export(tmp_path / "export", signatures=["serving_default"], warmup=False, check=False)
    found = answers(path, tmp_path, text=TEXTS)
    expected = servable.answer([text.encode() for text in TEXTS])
    assert found.keys() == expected.keys()
    assert len({str(row) for row in zip(*found.values(), strict=True)}) > 3
    for name, value in expected.items():
        if value.dtype.kind == "f":
            np.testing.assert_allclose(found[name], value, atol=1e-5)
        else:
            decoded = np.vectorize(lambda x: x.decode("utf-8", "replace") if isinstance(x, bytes) else x)
            assert found[name] == decoded(value).tolist(), name
