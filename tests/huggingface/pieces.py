"""Texts, and the files of tokenizers that are trained on them."""

import io
import json

import pytest
import sentencepiece
from families import own_model

from keras_transformer.huggingface import to_huggingface

TEXTS = [
    "A man runs in the park.", "두 마리 개가  공원에서 달린다!", " Zwei Hunde: 1,234 mal - (schön)", "é \t naïve\n", "",
]  # fmt: skip
LINES = [*TEXTS[:4], "the dog runs in the park", "the men are in the parks", "개가 달린다 공원에서"] * 9
BYTES = {
    "model_type": "bpe",
    "byte_fallback": True,
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
}
GEMMA = {
    **BYTES,
    "add_dummy_prefix": False,
    **{"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3},
    **{"pad_piece": "<pad>", "eos_piece": "<eos>", "bos_piece": "<bos>"},
    "user_defined_symbols": ["<start_of_turn>", "<end_of_turn>"],
}
T5_IDS = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}


def train_pieces(path, lines=LINES, vocab_size=90, **options):
    """Trains a SentencePiece model and writes it to a file."""
    model, options = io.BytesIO(), {"hard_vocab_limit": False, "minloglevel": 2, **options}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=vocab_size, **options
    )
    path.write_bytes(model.getvalue())


def byte_pieces():
    """A vocabulary of byte-level pieces and its merges, trained on the lines."""
    trained = pytest.importorskip("tokenizers").ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trained.train_from_iterator(LINES, 320, special_tokens=special, min_frequency=1)
    model = json.loads(trained.to_str())["model"]
    return model["vocab"], [tuple(merge) for merge in model["merges"]]


def described(folder, model_type, **options):
    """Writes the description of a checkpoint without a model, and the options of its tokenizer."""
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    (folder / "tokenizer_config.json").write_text(json.dumps(options))
    return folder


def written(folder, config, tokenizer_files):
    """Writes a random model of a configuration, and files beside it."""
    to_huggingface(own_model(config), folder, family=config["model_type"])
    for name, content in tokenizer_files.items():
        (folder / name).write_text(content, encoding="utf-8")
    return folder


def assert_same_ids(tokenizer, there, texts):
    """A tokenizer gives the ids of transformers' tokenizer."""
    expected = there(texts, add_special_tokens=False)["input_ids"]
    for text, own, other in zip(texts, tokenizer.tokenize(texts).to_list(), expected, strict=True):
        assert own == other, text


def sentence_modules(
    folder, pooling, modules=("Transformer", "Pooling", "Normalize"), max_length=9, **config
):
    """Writes the files of sentence-transformers around a model, as its older versions do."""
    (folder / "1_Pooling").mkdir(parents=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    paths = {"Transformer": "", "Pooling": "1_Pooling"}
    package, named = "sentence_transformers.models", [*enumerate(modules)]
    listed = [{"path": paths.get(kind, f"{i}_{kind}"), "type": f"{package}.{kind}"} for i, kind in named]
    (folder / "modules.json").write_text(json.dumps(listed))
    limits = {"max_seq_length": max_length, "do_lower_case": False}
    (folder / "sentence_bert_config.json").write_text(json.dumps(limits))
    (folder / "config_sentence_transformers.json").write_text(json.dumps(config))
    return folder
