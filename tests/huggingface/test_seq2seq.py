"""T5 and Marian: ids, copies of the embedding, and the table of positions."""

import json
import shutil

import numpy as np
import pytest
from families import MARIAN, T5, WEIGHTS, assert_same_weights, change_config, change_tensors, own_model
from safetensors.numpy import load_file

from keras_transformer.huggingface import FAMILIES, from_huggingface, to_huggingface
from keras_transformer.huggingface.files import stored_tensors
from keras_transformer.huggingface.tensors import fill_weights
from keras_transformer.models import T5 as T5Model

T5_SMALL = {**T5, "num_layers": 1, "num_decoder_layers": 1}
MARIAN_SMALL = {**MARIAN, "encoder_layers": 1}
FOLDERS = {"t5": T5_SMALL, "marian": MARIAN_SMALL}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A model of each family, and a folder that it was written to."""
    parent = tmp_path_factory.mktemp("models")
    models = {name: (own_model(config), parent / name) for name, config in FOLDERS.items()}
    for model, folder in models.values():
        to_huggingface(model, folder)
    return models


@pytest.fixture
def copied(models, tmp_path):
    """A function from a family to its model and a copy of its folder, to be changed."""
    return lambda name: (models[name][0], shutil.copytree(models[name][1], tmp_path / name))


def refused(model, folder):
    """Returns the message with which the tensors of a folder are refused."""
    family = FAMILIES["t5" if isinstance(model, T5Model) else "marian"]
    stored, tables = stored_tensors(folder), family.make_tables(model)
    with pytest.raises(ValueError) as caught:
        fill_weights(family.make_tensors(model), stored, family.prefix, family.ignored, tables)
    return str(caught.value)


@pytest.mark.parametrize(("name", "expected"), [("t5", (0, 0, 1)), ("marian", (30, 30, 0))])
def test_targets_begin_with_padding(models, name, expected):
    model = from_huggingface(models[name][1])
    assert (model.pad_id, model.bos_id, model.eos_id) == expected
    config = json.loads((models[name][1] / "config.json").read_text())
    assert config["decoder_start_token_id"] == expected[0]


COPIES = ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"]
MARIAN_COPIES = [f"model.{name}" for name in COPIES[:2]] + COPIES[2:]


@pytest.mark.parametrize(
    ("name", "embedding", "copies"),
    [("t5", "shared.weight", COPIES), ("marian", "model.shared.weight", MARIAN_COPIES)],
)
def test_copies_of_the_embedding_may_be_stored_and_must_be_equal(copied, name, embedding, copies):
    model, folder = copied(name)
    change_tensors(folder, lambda tensors: {**tensors, **{copy: tensors[embedding] for copy in copies}})
    again = from_huggingface(folder)
    assert_same_weights(again, model)
    for copy in copies:
        change_tensors(folder, lambda tensors, copy=copy: {**tensors, copy: tensors[embedding] + 0.01})
        assert f"{copy!r} differs from {embedding!r}, which it is tied to" in refused(again, folder)
        change_tensors(folder, lambda tensors, copy=copy: {**tensors, copy: tensors[embedding]})


def test_unused_bias_of_cross_attention_is_passed_over(copied):
    model, folder = copied("t5")
    name = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    change_tensors(folder, lambda tensors: {**tensors, name: np.ones((8, 3), "float32")})
    assert_same_weights(from_huggingface(folder), model)
    other = name.replace("block.0", "block.1")
    change_tensors(folder, lambda tensors: {**tensors, other: np.ones((8, 3), "float32")})
    assert f"{other.removeprefix('decoder.')}' is left over" in refused(model, folder)


TABLES = [f"model.{stack}.embed_positions.weight" for stack in ("encoder", "decoder")]


def table(length=64, d_model=18, interleaved=False):
    """Positions by the formula, in double precision."""
    angles = np.arange(length)[:, None] / 10000 ** (np.arange(0, d_model, 2) / d_model)
    parts = [np.sin(angles), np.cos(angles)]
    return np.stack(parts, -1).reshape(length, -1) if interleaved else np.concatenate(parts, -1)


def test_positions_that_are_stored_must_be_those_computed(copied):
    model, folder = copied("marian")
    for dtype, length in (("float32", 64), ("float16", 1024)):
        stored = {name: table(length).astype(dtype) for name in TABLES}
        change_tensors(folder, lambda tensors, stored=stored: {**tensors, **stored})
        assert_same_weights(from_huggingface(folder), model)
    change_tensors(folder, lambda tensors: {n.removeprefix("model."): array for n, array in tensors.items()})
    assert_same_weights(from_huggingface(folder), model)


@pytest.mark.parametrize(("stored", "expected"), [
    (table(interleaved=True), "differs from what is computed in its place"),
    (table() + 0.01, "differs from what is computed in its place"),
    (table(d_model=16), "has shape (64, 16), not (64, 18)"),
    (table()[0], "has shape (18,), not (18, 18)"),
    (table().astype("int8"), "is I8, no float"),
], ids=["order", "values", "width", "rank", "integers"])  # fmt: skip
def test_other_positions_are_refused(copied, stored, expected):
    model, folder = copied("marian")
    stored = stored if stored.dtype == "int8" else stored.astype("float32")
    change_tensors(folder, lambda tensors: {**tensors, TABLES[1]: stored})
    assert f"{TABLES[1]!r} {expected}" in refused(model, folder)


def test_positions_are_not_written(models):
    stored = load_file(models["marian"][1] / WEIGHTS)
    assert not set(TABLES) & set(stored)
    assert stored["final_logits_bias"].shape == (1, 31)


def test_own_output_projection_is_known_by_its_tensors(tmp_path):
    """As transformers 5 writes a T5 1.1: its configuration says that all is tied."""
    for config, tied in (
        ({**T5_SMALL, "tie_word_embeddings": False}, False),
        ({**T5_SMALL, "scale_decoder_outputs": False}, True),
    ):
        model, folder = own_model(config), tmp_path / str(tied)
        to_huggingface(model, folder)
        change_config(folder, tie_word_embeddings=True)
        again = from_huggingface(folder)
        assert (again.tie_embeddings, again.output_embedding.output_scale) == (tied, 1.0)
        assert_same_weights(again, model)
