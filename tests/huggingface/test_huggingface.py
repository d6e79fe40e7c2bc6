"""Checkpoints as files: what is read and written, which ids a model gets, and how much memory it takes."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import types

import keras
import ml_dtypes
import numpy as np
import pytest
from contracts import refuses
from families import (
    CONFIGS,
    EOS,
    FAST,
    GPT2,
    LINEAR,
    LLAMA,
    LLAMA3,
    WEIGHTS,
    assert_same_weights,
    change_config,
    change_tensors,
    own_model,
)
from safetensors.numpy import load_file

import keras_transformer
from keras_transformer.huggingface import FAMILIES, from_huggingface, to_huggingface
from keras_transformer.huggingface.checkpoint import Checkpoint
from keras_transformer.huggingface.tensors import Tensor, dense, matrix
from keras_transformer.layers import ZeroCenteredRMSNormalization

INDEX = "model.safetensors.index.json"
FEW_LAYERS = {"n_layer": 1, "num_hidden_layers": 1}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A model with tied embeddings, and a folder that it was written to."""
    model, folder = own_model({**GPT2, **FEW_LAYERS}), tmp_path_factory.mktemp("written") / "gpt2"
    to_huggingface(model, folder)
    return model, folder


def made(config):
    """Makes the model of a configuration with one layer."""
    return FAMILIES[config["model_type"]].make_model({**config, **FEW_LAYERS})


@pytest.fixture
def folder(written, tmp_path):
    """A copy of the folder, to be changed."""
    return shutil.copytree(written[1], tmp_path / "copy")


def test_config_stays_as_it_was_read_and_other_files_have_fields_of_their_own(folder):
    config = json.loads((folder / "config.json").read_text())
    before = Checkpoint(folder)
    assert (before.config, before.makes_vectors, before.stop_ids) == (config, False, [EOS])
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, EOS]}))
    (folder / "modules.json").write_text("[]")
    after = Checkpoint(folder)
    assert (after.config, after.makes_vectors, after.stop_ids) == (config, True, [EOS, 3])
    assert after.model_config() == {**config, "eos_token_id": [EOS, 3]}


# What lies where.


def test_one_matrix_holds_several_kernels_by_hand():
    query, key = (keras.Variable(np.zeros((2, 3, 1))) for _ in range(2))
    there = np.array([[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]])
    tensor = matrix("w", query, key)
    found = tensor.to_weights(there)
    assert [part[..., 0].tolist() for part in found] == [[[0, 1, 2], [6, 7, 8]], [[3, 4, 5], [9, 10, 11]]]
    np.testing.assert_array_equal(tensor.from_weights(found), there)
    turned = matrix("w", query, key, transposed=True)
    assert turned.shape == (6, 2)
    np.testing.assert_array_equal(turned.to_weights(there.T), found)
    np.testing.assert_array_equal(turned.from_weights(found), there.T)


def test_kernels_of_different_widths_share_a_matrix_and_their_biases_a_vector():
    kernels = [keras.Variable(np.zeros((5, heads, 2))) for heads in (3, 1)]
    biases = [keras.Variable(np.zeros((heads, 2))) for heads in (3, 1)]
    pairs = zip(kernels, biases, strict=True)
    weight, bias = dense("qk", *(types.SimpleNamespace(kernel=kernel, bias=bias) for kernel, bias in pairs))
    assert (weight.name, weight.shape, bias.name, bias.shape) == ("qk.weight", (8, 5), "qk.bias", (8,))
    there = np.arange(40).reshape(8, 5)
    wide, narrow = weight.to_weights(there)
    np.testing.assert_array_equal(wide[:, 1, 0], there[2])
    np.testing.assert_array_equal(narrow[:, 0, 1], there[7])
    assert [part.tolist() for part in bias.to_weights(np.arange(8))] == [[[0, 1], [2, 3], [4, 5]], [[6, 7]]]


@pytest.mark.parametrize("axes", [(0, 1, 2), (2, 1, 0), (1, 2, 0), (2, 0, 1)])
def test_a_tensor_of_any_axes_goes_both_ways(axes):
    shape = (2, 3, 5)
    weight = keras.Variable(np.zeros([shape[axis] for axis in axes]))
    tensor, there = Tensor("t", shape, (weight,), axes), np.arange(30).reshape(shape)
    (found,) = tensor.to_weights(there)
    np.testing.assert_array_equal(found, np.transpose(there, axes))
    np.testing.assert_array_equal(tensor.from_weights([found]), there)


# Files.


def test_large_models_go_to_several_files_and_an_index(written, tmp_path):
    model, folder = written
    one = load_file(folder / WEIGHTS)
    to_huggingface(model, tmp_path / "new", 3000)
    index = json.loads((tmp_path / "new" / INDEX).read_text())
    shards = {name: load_file(tmp_path / "new" / name) for name in set(index["weight_map"].values())}
    count = len(shards)
    assert count > 2
    assert sorted(shards) == [f"model-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)]
    assert {n: name for name, shard in shards.items() for n in shard} == index["weight_map"]
    assert index["weight_map"].keys() == one.keys()
    assert index["metadata"]["total_size"] == sum(array.nbytes for array in one.values())
    for shard in shards.values():
        assert len(shard) == 1 or sum(array.nbytes for array in shard.values()) <= 3000
        for name, array in shard.items():
            np.testing.assert_array_equal(array, one[name])
    assert not (tmp_path / "new" / WEIGHTS).exists()
    assert_same_weights(from_huggingface(tmp_path / "new"), model)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float64])
def test_floats_of_other_widths_are_read(written, folder, dtype):
    model, _ = written
    change_tensors(folder, lambda tensors: {name: array.astype(dtype) for name, array in tensors.items()})
    for found, expected in zip(from_huggingface(folder).get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(found, expected.astype(dtype).astype("float32"))


@pytest.mark.parametrize("dtype", ["bfloat16", "mixed_bfloat16"])
def test_a_model_of_another_dtype(written, tmp_path, dtype):
    expected, folder = written
    model = from_huggingface(folder, dtype=dtype, name="small")
    assert model.name == "small"
    assert all(layer.dtype_policy.name == dtype for layer in model._flatten_layers() if layer.weights)
    for weight, other in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_array_equal(weight, other.astype(weight.dtype))
    to_huggingface(model, tmp_path / "new")
    stored = load_file(tmp_path / "new" / WEIGHTS)
    assert {array.dtype for array in stored.values()} == {np.dtype("float32")}
    assert_same_weights(from_huggingface(tmp_path / "new", dtype=dtype), model)


def test_dropout_is_read_and_written(tmp_path):
    config = {**GPT2, "n_layer": 1, "resid_pdrop": 0.2, "embd_pdrop": 0.3, "attn_pdrop": 0.4}
    model = made(config)
    (layer,) = model.decoder.layers
    residuals = (layer.self_attention_residual, layer.feed_forward_residual)
    assert [r.dropout for r in residuals] == [0.2, 0.2]
    assert (model.embeddings.dropout, layer.self_attention.dropout, layer.feed_forward.dropout) == (
        0.3,
        0.4,
        0.0,
    )
    to_huggingface(model, tmp_path / "gpt2")
    assert json.loads((tmp_path / "gpt2" / "config.json").read_text()).items() >= config.items()
    model = made({**LLAMA, "attention_dropout": 0.3})
    assert model.decoder.layers[0].self_attention.dropout == 0.3
    assert FAMILIES["llama"].make_config(model)["attention_dropout"] == 0.3


# Ids.


@pytest.mark.parametrize(
    ("changes", "given", "expected"),
    [
        ({}, {}, (EOS, 30, EOS)),
        ({"pad_token_id": 3}, {}, (3, 30, EOS)),
        ({"pad_token_id": -1}, {}, (EOS, 30, EOS)),
        ({"pad_token_id": 0, "bos_token_id": 0}, {}, (0, 0, EOS)),
        ({"bos_token_id": None}, {}, (EOS, EOS, EOS)),
        ({"eos_token_id": [7]}, {}, (7, 30, 7)),
        ({"eos_token_id": [7, 8]}, {"eos_id": 8}, (8, 30, 8)),
        ({}, {"pad_id": 1, "bos_id": 2, "eos_id": 4}, (1, 2, 4)),
    ],
)
def test_given_ids_replace_those_of_config_json(folder, changes, given, expected):
    change_config(folder, **changes)
    model = from_huggingface(folder, **given)
    assert (model.pad_id, model.bos_id, model.eos_id) == expected


@pytest.mark.parametrize(
    ("ends", "generation", "given", "expected"),
    [
        ([7, 8], None, {}, (7, (8,))),
        ([7, 8, 9], None, {"eos_id": 8}, (8, (7, 9))),
        (7, [9, 7], {}, (7, (9,))),
        (7, [9, 8], {}, (9, (8,))),
        (7, 9, {}, (9, ())),
        ([7, 8], None, {"stop_ids": ()}, (7, ())),
    ],
)
@pytest.mark.sampled
def test_a_model_stops_at_each_end(folder, ends, generation, given, expected, tmp_path):
    change_config(folder, eos_token_id=ends)
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": generation}))
    model = from_huggingface(folder, **given)
    assert (model.eos_id, model.stop_ids) == expected
    to_huggingface(model, tmp_path / "new")
    again = from_huggingface(tmp_path / "new")
    assert (again.eos_id, again.stop_ids) == expected


@pytest.mark.slow
def test_a_prompt_ends_before_an_eos_that_is_its_padding(written):
    """As the documentation says of models without a token for padding."""
    model = from_huggingface(written[1])
    with_end, without = (np.array([[4, 5, *end]]) for end in ([EOS], []))
    found = [model.generate(ids, max_length=5).tokens for ids in (with_end, without)]
    np.testing.assert_array_equal(*map(keras.ops.convert_to_numpy, found))


@pytest.mark.slow
def test_empty_prompt_begins_with_bos_for_any_padding(written):
    begun, padded = (from_huggingface(written[1], bos_id=EOS, pad_id=pad_id) for pad_id in (1, EOS))
    expected = begun.generate(np.array([[EOS]]), max_length=5).tokens
    found = padded.generate(np.array([[EOS]]), max_length=5).tokens
    np.testing.assert_array_equal(*map(keras.ops.convert_to_numpy, (found, expected)))


# Reading.


EMBEDDING = "transformer.wte.weight"


def without_prefix(tensors):
    found = {name.removeprefix("transformer."): a for name, a in tensors.items()}
    assert found.keys().isdisjoint(tensors)
    return found


def with_buffers(*names):
    return lambda tensors: {**tensors, **{name: np.ones((1, 1), "uint8") for name in names}}


with_old_buffers = with_buffers("transformer.h.0.attn.bias", "h.1.attn.masked_bias")


def with_projection(tensors):
    return {**tensors, "lm_head.weight": tensors[EMBEDDING]}


def with_projection_alone(tensors):
    return {("lm_head.weight" if name == EMBEDDING else name): a for name, a in tensors.items()}


@pytest.mark.parametrize("change", [without_prefix, with_old_buffers, with_projection, with_projection_alone])
def test_other_forms_of_a_checkpoint_are_read(written, folder, change):
    change_tensors(folder, change)
    assert_same_weights(from_huggingface(folder), written[0])


def test_buffers_of_llama_are_passed_over(tmp_path):
    model = made(LLAMA)
    to_huggingface(model, tmp_path / "new")
    names = ["model.layers.0.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"]
    change_tensors(tmp_path / "new", with_buffers(*names))
    assert_same_weights(from_huggingface(tmp_path / "new"), model)


def test_a_tied_projection_that_differs_is_refused(folder):
    def changed(tensors):
        other = tensors[EMBEDDING].copy()
        other[3, 2] += 0.01
        return {**tensors, "lm_head.weight": other}

    change_tensors(folder, changed)
    refuses(r"'lm_head\.weight' differs from .*, which it is tied to", from_huggingface, folder)


def test_a_copy_is_compared_in_the_dtype_of_the_model(folder):
    """bfloat16 weights cannot tell what float32 can."""
    change_tensors(folder, with_projection)
    assert {weight.dtype for weight in from_huggingface(folder, dtype="bfloat16").weights} == {"bfloat16"}


def test_llama3_rope_without_an_original_length_has_the_models(tmp_path):
    rope = {key: value for key, value in LLAMA3.items() if key != "original_max_position_embeddings"}
    model = made({**LLAMA, "rope_parameters": rope})
    assert model.decoder.layers[0].self_attention.positions.scaling.original_max_length == 64


@pytest.mark.slow
@pytest.mark.parametrize("rope", [None, LINEAR, LLAMA3], ids=["default", "linear", "llama3"])
def test_rope_of_transformers_4_is_that_of_5(rope):
    scaling = None if rope is None else {**rope}
    theta = 77.0 if rope is None else scaling.pop("rope_theta")
    if rope is LINEAR:
        scaling["type"] = scaling.pop("rope_type")  # older still
    old = {**LLAMA, "rope_theta": theta, "rope_scaling": scaling}
    new = {**LLAMA, "rope_parameters": rope or {"rope_type": "default", "rope_theta": theta}}
    found, expected = (made(each).decoder.layers[0].self_attention.positions for each in (old, new))
    assert found.max_wavelength == theta
    assert (found.max_wavelength, found.scaling) == (expected.max_wavelength, expected.scaling)
    transformers = pytest.importorskip("transformers")
    read = transformers.LlamaConfig(**{k: v for k, v in old.items() if k != "model_type"})
    assert read.rope_parameters.items() >= {"rope_theta": theta, **(rope or {})}.items()


def test_rope_scaling_of_gemma_3_counts_beside_rope_parameters():
    """In its layers without a window, as in transformers, which adds its keys to theirs."""
    given = {"full_attention": {"rope_type": "default", "rope_theta": 70.0}, "sliding_attention": FAST}
    scaling = {"rope_type": "linear", "factor": 3.0}
    config = {**CONFIGS["gemma3_text"], "rope_parameters": given, "rope_scaling": scaling}
    local, full = (layer.self_attention.positions for layer in own_model(config).decoder.layers)
    assert (full.max_wavelength, full.scaling.factor) == (70.0, 3.0)
    assert (local.max_wavelength, local.scaling) == (FAST["rope_theta"], None)


def test_fresh_zero_centred_norm_only_normalises():
    norm = ZeroCenteredRMSNormalization(epsilon=0.0)
    x = np.array([[3.0, 4.0]])
    np.testing.assert_allclose(norm(x), x / np.sqrt(12.5), rtol=1e-6)
    norm.scale.assign([1.0, -1.0])
    np.testing.assert_allclose(norm(x), [[6 / np.sqrt(12.5), 0.0]], rtol=1e-6)


# Writing.


def test_existing_folder_and_size_of_zero_are_refused(written, tmp_path):
    refuses(f"must not exist yet. Received: {tmp_path}", to_huggingface, written[0], tmp_path)
    refuses("max_shard_bytes=0", to_huggingface, written[0], tmp_path / "new", 0)


def test_error_leaves_no_folder(written, tmp_path, monkeypatch):
    def full(tensor):
        if not left.pop():
            raise OSError(28, "No space left on device")
        return np.zeros(tensor.shape, "float32")

    left = [False, True, True]
    monkeypatch.setattr(Tensor, "value", full)
    with pytest.raises(OSError, match="new"):
        to_huggingface(written[0], tmp_path / "new")
    assert not left
    assert list(tmp_path.iterdir()) == []


def test_config_adds_keys_and_must_not_contradict_the_model(written, tmp_path):
    model, _ = written
    for clash in ({"vocab_size": 7}, {"dtype": "float16"}, {"bos_token_id": 3}):
        ((key, value),) = clash.items()
        with pytest.raises(ValueError, match=f"Received: {key}={value!r}, where the model has"):
            to_huggingface(model, tmp_path / "new", config={"initializer_range": 0.1, **clash})
    to_huggingface(model, tmp_path / "new", config={"n_ctx": 5})
    assert json.loads((tmp_path / "new" / "config.json").read_text())["n_ctx"] == 5


# Each of these files would end in a raw error, or be written where it must not.
HOSTILE = [
    (5, "`checkpoint_files` must be a dict"),
    (
        {"adapter_config.json": {}},
        "must hold the files of a checkpoint. Received: name='adapter_config.json'",
    ),
    ({"../config.json": {}}, r"must hold the files of a checkpoint. Received: name='\.\./config"),
    ({"config.json": {"auto_map": {}}}, "must hold the files of a checkpoint"),
    ({"config.json": {"model_type": []}}, "`model_type` of config.json must be a str"),
    ({"config.json": []}, "config.json must hold an object"),
    ({"generation_config.json": {"num_beams": "a"}}, "`num_beams` of generation_config.json must be"),
    ({"modules.json": [1]}, "modules.json must hold a list of modules"),
    ({"config_sentence_transformers.json": {"prompts": [1]}}, "`prompts` of .* must be an object of str"),
    ({"chat_template.jinja": {}}, "chat_template.jinja must hold text of UTF-8"),
]


def test_kept_files_must_fit_the_model_and_stay_in_the_folder(written, tmp_path, caplog):
    model, _ = written
    keys = {"n_positions": 7, "scale_attn_by_inverse_layer_idx": True, "num_beams": 3}
    vars(model)["checkpoint_files"] = {"config.json": keys}
    assert FAMILIES["gpt2"].make_config(model)["n_positions"] == GPT2["n_positions"]
    assert "loses the keys ['num_beams', 'scale_attn_by_inverse_layer_idx']" in caplog.text
    vars(model)["checkpoint_files"] = {"../model.safetensors": "a"}
    with pytest.raises(ValueError, match=r"A path of `files` must be a name.*Received: path='\.\./model"):
        to_huggingface(model, tmp_path / "new")
    vars(model)["checkpoint_files"] = {}
    config = model.get_config()
    for files, message in HOSTILE:
        refuses(message, type(model).from_config, {**config, "checkpoint_files": files})
        if files != 5 and {*files} <= {"modules.json", "config_sentence_transformers.json"}:
            refuses(message, to_huggingface, model, tmp_path / "new", files=files)
    for name in ("config.json", "tokenizer_config.json"):
        with pytest.raises(ValueError, match="`config` and `tokenizers` say what is in them"):
            to_huggingface(model, tmp_path / "new", files={name: {"num_beams": 3}})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("rope", [None, LLAMA3, {"rope_type": "linear", "factor": 3.0}])
def test_longest_text_follows_from_the_rope(rope, tmp_path):
    model = made({**LLAMA, "rope_parameters": rope})
    expected = {None: 2048, "llama3": 64, "linear": 3 * 2048}[rope and rope["rope_type"]]
    assert FAMILIES["llama"].make_config(model)["max_position_embeddings"] == expected
    if rope is None:  # another length may be written
        to_huggingface(model, tmp_path / "new", config={"max_position_embeddings": 4096})
        config = json.loads((tmp_path / "new" / "config.json").read_text())
        assert config["max_position_embeddings"] == 4096


def test_the_weights_of_lora_are_added(tmp_path):
    model = made(GPT2)
    projection = model.decoder.layers[0].self_attention.query_dense
    before = keras.ops.convert_to_numpy(projection.kernel)
    projection.enable_lora(2)
    for weight in projection.trainable_variables:
        weight.assign(np.full(weight.shape, 0.1))
    ids = np.arange(2 * 11).reshape(2, 11)
    to_huggingface(model, tmp_path / "new")
    again = from_huggingface(tmp_path / "new")
    found = keras.ops.convert_to_numpy(again.decoder.layers[0].self_attention.query_dense.kernel)
    assert np.abs(found - before).max() > 0.01
    np.testing.assert_allclose(*(keras.ops.convert_to_numpy(each(ids)) for each in (again, model)), atol=1e-5)


# Cost.


def run(code, *arguments, **variables):
    package = pathlib.Path(keras_transformer.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(package), **variables}
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip().splitlines()[-1]


# A process for each: what was freed before would hide what is taken.
IN_MEGABYTES = """
import pathlib, sys

from keras_transformer.huggingface import FAMILIES, from_huggingface, to_huggingface


def memory(kind):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(kind)) / 1024


def made(layers, width, heads):
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    ids = {"vocab_size": 1009, "eos_token_id": 2, "bos_token_id": 1}
    return FAMILIES["llama"].make_model({"model_type": "llama", **ids, **sizes, "intermediate_size": 2048})


folder, reads = pathlib.Path(sys.argv[1]), sys.argv[2] == "read"
model = made(1, 16, 2) if reads else made(13, 768, 12)  # the small one starts what starts once
before = memory("VmRSS")
pathlib.Path("/proc/self/clear_refs").write_text("5")
if reads:
    model = from_huggingface(folder)
else:
    to_huggingface(model, folder)
megabytes = 4 * model.count_params() / 2**20
print((memory("VmHWM") - before) / megabytes + (not reads), megabytes)
"""


@pytest.mark.slow
@pytest.mark.skipif(not pathlib.Path("/proc/self/clear_refs").exists(), reason="Linux says how much memory")
def test_memory_is_that_of_the_model_and_little_more(tmp_path):
    # glibc gives back at once what is freed: what it would keep depends on the backend's threads, not on what is held.
    libc = {"MALLOC_MMAP_THRESHOLD_": "65536"}
    for way in ("write", "read"):
        share, megabytes = map(float, run(IN_MEGABYTES, tmp_path / "model", way, **libc).split())
        assert megabytes > 350
        assert 0.9 < share <= 1.3, way


def test_progress_is_shown_where_it_is_asked_for(written, capfd):
    from_huggingface(written[1])
    assert "tensor" not in capfd.readouterr().err
    from_huggingface(written[1], verbose=True)
    assert "tensor" in capfd.readouterr().err
