"""T5 and Marian: ids, copies of the embedding, and the table of positions."""

import json

import numpy as np
import pytest
from families import MARIAN, T5, WEIGHTS, assert_same_weights, change_config, change_tensors, own_model
from safetensors.numpy import load_file

from keras_transformer.huggingface import from_huggingface, to_huggingface

FOLDERS = {"t5": T5, "marian": MARIAN}


@pytest.fixture(params=FOLDERS)
def written(request, tmp_path):
    """A model, and a folder that it was written to."""
    model = own_model(FOLDERS[request.param])
    to_huggingface(model, tmp_path / request.param)
    return model, tmp_path / request.param


@pytest.fixture
def marian(tmp_path):
    """A Marian model, and a folder that it was written to."""
    model = own_model(MARIAN)
    to_huggingface(model, tmp_path / "marian")
    return model, tmp_path / "marian"


def refused(folder):
    with pytest.raises(ValueError) as caught:
        from_huggingface(folder)
    return str(caught.value)


@pytest.mark.parametrize(("config", "expected"), [(T5, (0, 0, 1)), (MARIAN, (30, 30, 0))])
def test_targets_begin_with_padding(config, expected, tmp_path):
    to_huggingface(own_model(config), tmp_path / "new")
    model = from_huggingface(tmp_path / "new")
    assert (model.pad_id, model.bos_id, model.eos_id) == expected
    config = json.loads((tmp_path / "new" / "config.json").read_text())
    assert config["decoder_start_token_id"] == expected[0]


COPIES = {
    "t5": ("shared.weight", ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"]),
    "marian": (
        "model.shared.weight",
        ["model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"],
    ),
}


def test_copies_of_the_embedding_may_be_stored_and_must_be_equal(written):
    model, folder = written
    name, copies = COPIES[folder.name]
    change_tensors(folder, lambda tensors: {**tensors, **{copy: tensors[name] for copy in copies}})
    assert_same_weights(from_huggingface(folder), model)
    for copy in copies:
        change_tensors(folder, lambda tensors, copy=copy: {**tensors, copy: tensors[name] + 0.01})
        assert f"{copy!r} differs from {name!r}, which it is tied to" in refused(folder)
        change_tensors(folder, lambda tensors, copy=copy: {**tensors, copy: tensors[name]})


def test_unused_bias_of_cross_attention_is_passed_over(tmp_path):
    model, folder = own_model(T5), tmp_path / "new"
    to_huggingface(model, folder)
    name = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    change_tensors(folder, lambda tensors: {**tensors, name: np.ones((8, 3), "float32")})
    assert_same_weights(from_huggingface(folder), model)
    change_tensors(
        folder, lambda tensors: {**tensors, name.replace("block.0", "block.1"): np.ones((8, 3), "float32")}
    )
    assert "block.1.layer.1.EncDecAttention.relative_attention_bias.weight' is left over" in refused(folder)


TABLES = [f"model.{stack}.embed_positions.weight" for stack in ("encoder", "decoder")]


def table(length=64, d_model=18, interleaved=False):
    """Positions by the formula, in double precision."""
    angles = np.arange(length)[:, None] / 10000 ** (np.arange(0, d_model, 2) / d_model)
    parts = [np.sin(angles), np.cos(angles)]
    return np.stack(parts, -1).reshape(length, -1) if interleaved else np.concatenate(parts, -1)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("length", [64, 1024])
def test_positions_that_are_stored_must_be_those_computed(marian, dtype, length):
    model, folder = marian
    stored = table(length).astype(dtype)
    change_tensors(folder, lambda tensors: {**tensors, **{name: stored for name in TABLES}})
    assert_same_weights(from_huggingface(folder), model)
    change_tensors(folder, lambda tensors: {n.removeprefix("model."): array for n, array in tensors.items()})
    assert_same_weights(from_huggingface(folder), model)


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (table(interleaved=True), "differs from what is computed in its place"),
        (table() + 0.01, "differs from what is computed in its place"),
        (table(d_model=16), "has shape (64, 16), not (64, 18)"),
        (table()[0], "has shape (18,), not (18, 18)"),
        (table().astype("int8"), "is I8, no float"),
    ],
    ids=["order", "values", "width", "rank", "integers"],
)
def test_other_positions_are_refused(marian, stored, expected):
    _, folder = marian
    stored = stored if stored.dtype == "int8" else stored.astype("float32")
    change_tensors(folder, lambda tensors: {**tensors, TABLES[1]: stored})
    assert f"{TABLES[1]!r} {expected}" in refused(folder)


def test_positions_are_not_written(marian):
    stored = load_file(marian[1] / WEIGHTS)
    assert not set(TABLES) & set(stored)
    assert stored["final_logits_bias"].shape == (1, 31)


def test_own_output_projection_is_known_by_its_tensors(tmp_path):
    """As transformers 5 writes a T5 1.1: its configuration says that all is tied."""
    for config, tied in (
        ({**T5, "tie_word_embeddings": False}, False),
        ({**T5, "scale_decoder_outputs": False}, True),
    ):
        model, folder = own_model(config), tmp_path / str(tied)
        to_huggingface(model, folder)
        change_config(folder, tie_word_embeddings=True)
        again = from_huggingface(folder)
        assert (again.tie_embeddings, again.output_embedding.output_scale) == (tied, 1.0)
        assert_same_weights(again, model)
