"""Checkpoints as files: what is read, what is refused, what is written, and in how much memory."""

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
from families import (
    CONFIGS,
    EOS,
    GPT2,
    LLAMA,
    LLAMA3,
    T5,
    VOCAB,
    assert_refused,
    assert_same_weights,
    inputs_of,
    ours,
)
from safetensors.numpy import load_file, save_file

import keras_transformer
from keras_transformer import layers
from keras_transformer.huggingface import FAMILIES, from_huggingface, to_huggingface
from keras_transformer.huggingface.tensors import Tensor, dense, matrix
from keras_transformer.models import LanguageModel

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
TIED = {"gpt2": GPT2, "llama": {**LLAMA, "tie_word_embeddings": True}}


@pytest.fixture(scope="module", params=TIED)
def written(request, tmp_path_factory):
    """A model with tied embeddings, and a folder that it was written to."""
    model, folder = ours(TIED[request.param]), tmp_path_factory.mktemp("written") / request.param
    to_huggingface(model, folder)
    return model, folder


@pytest.fixture
def folder(written, tmp_path):
    """A copy of the folder, to be changed."""
    return shutil.copytree(written[1], tmp_path / "copy")


def configured(folder, **changes):
    """Changes config.json; None takes a key away."""
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def rewritten(folder, change):
    """Replaces the tensors by what a function makes of them."""
    tensors = {name: array.copy() for name, array in load_file(folder / WEIGHTS).items()}
    save_file(
        {name: np.ascontiguousarray(array) for name, array in change(tensors).items()}, folder / WEIGHTS
    )


def refused(folder, **kwargs):
    with pytest.raises(ValueError) as caught:
        from_huggingface(folder, **kwargs)
    return str(caught.value)


# What lies where.


def test_one_matrix_holds_several_kernels_by_hand():
    query, key = (keras.Variable(np.zeros((2, 3, 1))) for _ in range(2))
    theirs = np.array([[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]])
    tensor = matrix("w", query, key)
    found = tensor.to_weights(theirs)
    assert [part[..., 0].tolist() for part in found] == [[[0, 1, 2], [6, 7, 8]], [[3, 4, 5], [9, 10, 11]]]
    np.testing.assert_array_equal(tensor.from_weights(found), theirs)
    turned = matrix("w", query, key, transposed=True)
    assert turned.shape == (6, 2)
    np.testing.assert_array_equal(turned.to_weights(theirs.T), found)
    np.testing.assert_array_equal(turned.from_weights(found), theirs.T)


def test_kernels_of_different_widths_share_a_matrix_and_their_biases_a_vector():
    kernels = [keras.Variable(np.zeros((5, heads, 2))) for heads in (3, 1)]
    biases = [keras.Variable(np.zeros((heads, 2))) for heads in (3, 1)]
    pairs = zip(kernels, biases, strict=True)
    weight, bias = dense("qk", *(types.SimpleNamespace(kernel=kernel, bias=bias) for kernel, bias in pairs))
    assert (weight.name, weight.shape, bias.name, bias.shape) == ("qk.weight", (8, 5), "qk.bias", (8,))
    theirs = np.arange(40).reshape(8, 5)
    wide, narrow = weight.to_weights(theirs)
    np.testing.assert_array_equal(wide[:, 1, 0], theirs[2])
    np.testing.assert_array_equal(narrow[:, 0, 1], theirs[7])
    assert [part.tolist() for part in bias.to_weights(np.arange(8))] == [[[0, 1], [2, 3], [4, 5]], [[6, 7]]]


@pytest.mark.parametrize("axes", [(0, 1, 2), (2, 1, 0), (1, 2, 0), (2, 0, 1)])
def test_a_tensor_of_any_axes_goes_both_ways(axes):
    shape = (2, 3, 5)
    weight = keras.Variable(np.zeros([shape[axis] for axis in axes]))
    tensor, theirs = Tensor("t", shape, (weight,), axes), np.arange(30).reshape(shape)
    (found,) = tensor.to_weights(theirs)
    np.testing.assert_array_equal(found, np.transpose(theirs, axes))
    np.testing.assert_array_equal(tensor.from_weights([found]), theirs)


# Out and in.


@pytest.mark.parametrize(
    ("case", "max_shard_bytes"),
    [*((case, 2**30) for case in CONFIGS), *((case, size) for case in ("gpt2", "t5") for size in (1, 3000))],
)
def test_what_goes_out_comes_in_unchanged(case, max_shard_bytes, tmp_path):
    model = ours(CONFIGS[case])
    to_huggingface(model, tmp_path / "new", max_shard_bytes)
    again = from_huggingface(tmp_path / "new")
    assert_same_weights(again, model)
    family = FAMILIES[CONFIGS[case]["model_type"]]
    assert family.make_config(again) == family.make_config(model)
    ids = np.arange(2 * 11).reshape(2, 11)
    found, expected = (keras.ops.convert_to_numpy(each(inputs_of(each, ids))) for each in (again, model))
    np.testing.assert_array_equal(found, expected)


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


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float64])
def test_floats_of_other_widths_are_read(written, folder, dtype):
    model, _ = written
    rewritten(folder, lambda tensors: {name: array.astype(dtype) for name, array in tensors.items()})
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
    config = {**GPT2, "resid_pdrop": 0.2, "embd_pdrop": 0.3, "attn_pdrop": 0.4}
    model = ours(config)
    layer = model.decoder.layers[1]
    residuals = (layer.self_attention_residual, layer.feed_forward_residual)
    assert [r.dropout for r in residuals] == [0.2, 0.2]
    assert (model.dropout, layer.self_attention.dropout, layer.feed_forward.dropout) == (0.3, 0.4, 0.0)
    to_huggingface(model, tmp_path / "gpt2")
    assert json.loads((tmp_path / "gpt2" / "config.json").read_text()).items() >= config.items()
    config = {**LLAMA, "attention_dropout": 0.3}
    assert ours(config).decoder.layers[0].self_attention.dropout == 0.3
    to_huggingface(ours(config), tmp_path / "llama")
    assert json.loads((tmp_path / "llama" / "config.json").read_text())["attention_dropout"] == 0.3


# Ids.


@pytest.mark.parametrize(
    ("said", "given", "expected"),
    [
        ({}, {}, (EOS, 30, EOS)),
        ({"pad_token_id": 3}, {}, (3, 30, EOS)),
        ({"pad_token_id": -1}, {}, (EOS, 30, EOS)),
        ({"pad_token_id": 0, "bos_token_id": 0}, {}, (0, 0, EOS)),
        ({"eos_token_id": [7]}, {}, (7, 30, 7)),
        ({"eos_token_id": [7, 8]}, {"eos_id": 8}, (8, 30, 8)),
        ({}, {"pad_id": 1, "bos_id": 2, "eos_id": 4}, (1, 2, 4)),
    ],
)
def test_ids_are_those_of_the_configuration_or_those_given(folder, said, given, expected):
    configured(folder, **said)
    model = from_huggingface(folder, **given)
    assert (model.pad_id, model.bos_id, model.eos_id) == expected


def test_without_a_first_token_a_text_begins_as_it_ends(folder):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "bos_token_id": None}))
    assert from_huggingface(folder).bos_id == EOS


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
def test_a_model_stops_at_each_end(folder, ends, generation, given, expected, tmp_path):
    configured(folder, eos_token_id=ends)
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": generation}))
    model = from_huggingface(folder, **given)
    assert (model.eos_id, model.stop_ids) == expected
    to_huggingface(model, tmp_path / "new")
    again = from_huggingface(tmp_path / "new")
    assert (again.eos_id, again.stop_ids) == expected


def test_several_ends_of_a_translation_are_refused(tmp_path):
    to_huggingface(ours(T5), tmp_path / "t5")
    configured(tmp_path / "t5", eos_token_id=[7, 8])
    assert "say which with `eos_id=`. Received: eos_token_id=[7, 8]" in refused(tmp_path / "t5")


@pytest.mark.slow
def test_a_prompt_ends_before_an_eos_that_is_its_padding(written):
    """As the documentation says of models without a token for padding."""
    model = from_huggingface(written[1])
    with_end, without = (np.array([[4, 5, *end]]) for end in ([EOS], []))
    found = [model.generate(ids, max_length=5).tokens for ids in (with_end, without)]
    np.testing.assert_array_equal(*map(keras.ops.convert_to_numpy, found))


@pytest.mark.slow
def test_an_empty_prompt_begins_with_bos_whatever_the_padding(written):
    begun, padded = (from_huggingface(written[1], bos_id=EOS, pad_id=pad_id) for pad_id in (1, EOS))
    expected = begun.generate(np.array([[EOS]]), max_length=5).tokens
    found = padded.generate(np.array([[EOS]]), max_length=5).tokens
    np.testing.assert_array_equal(*map(keras.ops.convert_to_numpy, (found, expected)))


# What is read.


def test_names_come_without_the_prefix_too(written, folder):
    def bare(tensors):
        found = {name.removeprefix("transformer.").removeprefix("model."): a for name, a in tensors.items()}
        assert found.keys().isdisjoint(tensors)
        return found

    rewritten(folder, bare)
    assert_same_weights(from_huggingface(folder), written[0])


def test_buffers_of_old_checkpoints_are_passed_over(written, folder):
    names = {
        "gpt2": ["transformer.h.0.attn.bias", "h.1.attn.masked_bias"],
        "llama": ["model.layers.0.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"],
    }[written[1].name]
    rewritten(folder, lambda tensors: {**tensors, **{name: np.ones((1, 1), "uint8") for name in names}})
    assert_same_weights(from_huggingface(folder), written[0])


def embedding_of(tensors):
    return next(name for name in tensors if name.endswith(("wte.weight", "embed_tokens.weight")))


def test_a_tied_projection_may_be_stored_too(written, folder):
    rewritten(folder, lambda t: {**t, "lm_head.weight": t[embedding_of(t)]})
    assert_same_weights(from_huggingface(folder), written[0])


def test_a_tied_projection_may_be_all_that_is_stored(written, folder):
    rewritten(folder, lambda t: {("lm_head.weight" if n == embedding_of(t) else n): a for n, a in t.items()})
    assert_same_weights(from_huggingface(folder), written[0])


def test_a_tied_projection_that_differs_is_refused(folder):
    def changed(tensors):
        other = tensors[embedding_of(tensors)].copy()
        other[3, 2] += 0.01
        return {**tensors, "lm_head.weight": other}

    rewritten(folder, changed)
    message = refused(folder)
    assert "'lm_head.weight' differs from" in message and "which it is tied to" in message


def test_a_copy_is_compared_as_the_model_holds_it(folder):
    """bfloat16 weights cannot tell what float32 can."""
    rewritten(folder, lambda t: {**t, "lm_head.weight": t[embedding_of(t)]})
    assert {weight.dtype for weight in from_huggingface(folder, dtype="bfloat16").weights} == {"bfloat16"}


# What is refused.


def norm_of(tensors):
    return next(name for name in tensors if name.endswith(("ln_f.weight", "model.norm.weight")))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda name, array: {}, "{name!r} is missing"),
        (lambda name, array: {name: array, "what.bias": array}, "'what.bias' is left over"),
        (lambda name, array: {name: array, "h.0.attn.bias_k": array}, "'h.0.attn.bias_k' is left over"),
        (lambda name, array: {name: array[:7]}, "{name!r} has shape (7,), not {shape}"),
        (lambda name, array: {name: array[None]}, "{name!r} has shape (1, {shape[0]}), not {shape}"),
        (lambda name, array: {name: array.astype("int8")}, "{name!r} is I8, no float"),
        (lambda name, array: {name: array, name.partition(".")[2]: array}, "{bare!r} is left over"),
    ],
    ids=["missing", "left-over", "no-buffer", "shape", "rank", "integers", "twice"],
)
def test_tensors_that_do_not_fit_are_named(folder, change, expected):
    tensors = load_file(folder / WEIGHTS)
    name = norm_of(tensors)
    rewritten(folder, lambda tensors: {**change(name, tensors.pop(name)), **tensors})
    message = refused(folder)
    values = {"name": name, "shape": tensors[name].shape, "bare": name.partition(".")[2]}
    assert message.endswith(f"Received: {expected.format(**values)}.")


def test_all_that_does_not_fit_is_named_ten_at_most(folder):
    tensors = load_file(folder / WEIGHTS)
    rewritten(folder, lambda tensors: {"a": np.zeros(2, "float32"), norm_of(tensors): np.zeros((2, 3))})
    message = refused(folder)
    assert "'a' is left over" in message
    assert f"{norm_of(tensors)!r} has shape (2, 3)" in message
    assert message.count(" is missing") == 8
    assert message.endswith(f"; and {len(tensors) - 1 - 8} more.")


def test_an_untied_model_needs_its_projection(folder):
    configured(folder, tie_word_embeddings=False)
    assert refused(folder).endswith("Received: 'lm_head.weight' is missing.")


CONFIG_ERRORS = [
    (GPT2, {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True"),
    (GPT2, {"reorder_and_upcast_attn": True}, "reorder_and_upcast_attn=True"),
    (GPT2, {"add_cross_attention": True}, "add_cross_attention=True"),
    (GPT2, {"activation_function": "mish"}, "activation_function='mish'"),
    (GPT2, {"n_head": 4}, "n_embd=15, n_head=4"),
    (GPT2, {"n_layer": 0}, "n_layer=0"),
    (GPT2, {"n_embd": "15"}, "n_embd='15'"),
    (LLAMA, {"hidden_act": "mish"}, "hidden_act='mish'"),
    (LLAMA, {"num_key_value_heads": 4}, "num_heads=6, num_key_value_heads=4"),
    (LLAMA, {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "rope_type='yarn'"),
    (
        LLAMA,
        {"rope_parameters": None, "rope_scaling": {"type": "dynamic", "factor": 2.0}},
        "rope_type='dynamic'",
    ),
    (LLAMA, {"rope_parameters": {"rope_type": "linear"}}, "`factor` must be in the 'linear' rope"),
    (LLAMA, {"rope_parameters": {**LLAMA3, "low_freq_factor": 5.0}}, "low_frequency_factor=5.0"),
    (LLAMA, {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor=0.5"),
    (LLAMA, {"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
]


@pytest.mark.parametrize(("config", "changes", "expected"), CONFIG_ERRORS, ids=lambda x: str(x)[:40])
def test_configurations_without_a_part_are_refused(config, changes, expected):
    with pytest.raises(ValueError) as caught:
        FAMILIES[config["model_type"]].make_model({**config, **changes})
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"quantization_config": {"bits": 4}}, "quantization_config={'bits': 4}"),
        ({"model_type": "gpt3"}, f"must be one of {sorted(FAMILIES)}. Received: model_type='gpt3'"),
        ({"bos_token_id": VOCAB}, f"from 0 to {VOCAB - 1}. Received: bos_id={VOCAB}"),
    ],
    ids=str,
)
def test_configurations_of_files_are_refused(folder, changes, expected):
    configured(folder, **changes)
    assert expected in refused(folder)


def test_llama3_rope_without_an_original_length_has_the_models(tmp_path):
    rope = {key: value for key, value in LLAMA3.items() if key != "original_max_position_embeddings"}
    model = ours({**LLAMA, "rope_parameters": rope})
    assert model.decoder.layers[0].self_attention.positions.scaling.original_max_length == 64


def test_pickled_weights_are_refused(folder):
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")
    message = refused(folder)
    assert "such a file can run code" in message and "pytorch_model.bin" in message
    assert "save_pretrained" in message


def damaged(path):
    path.write_bytes(path.read_bytes()[:-4])


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda f: (f / WEIGHTS).unlink(), f"`folder` must hold {WEIGHTS} or {INDEX}"),
        (lambda f: damaged(f / WEIGHTS), f"{WEIGHTS}: Error while deserializing header"),
        (lambda f: (f / "config.json").unlink(), "Cannot read"),
        (lambda f: (f / "config.json").write_text("{"), "Cannot read"),
        (lambda f: (f / "config.json").write_text("[]"), "must hold a JSON object. Received: a list"),
        (lambda f: (f / "config.json").write_text("{}"), "model_type=None"),
    ],
    ids=["none", "damaged", "no-config", "no-json", "no-object", "no-type"],
)
def test_folders_that_hold_no_checkpoint_are_refused(folder, change, expected):
    change(folder)
    assert expected in refused(folder)


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ({"a": "../model-1.safetensors"}, "Received: '../model-1.safetensors' in"),
        ({"a": "/etc/passwd"}, "Received: '/etc/passwd' in"),
        ({"a": 3, "b": "one.safetensors"}, "Received: 3 in"),
        ({"a": ["one.safetensors"]}, "Received: ['one.safetensors'] in"),
        ({}, "Received: None in"),
        (None, "Received: None in"),
        ({"a": "model-2.safetensors"}, "Cannot read"),
        ({"a": "one.safetensors", "b": "two.safetensors"}, "is stored twice, in"),
    ],
    ids=["above", "absolute", "number", "list", "empty", "none", "missing", "twice"],
)
def test_indices_that_lead_nowhere_are_refused(folder, places, expected):
    shutil.copy(folder / WEIGHTS, folder / "one.safetensors")
    (folder / WEIGHTS).rename(folder / "two.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": places}))
    assert expected in refused(folder)


def test_without_safetensors_the_error_says_what_to_install(written, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ImportError, match=r"pip install safetensors"):
        from_huggingface(written[1])


# What is written.


def test_a_folder_that_exists_is_left_alone(written, tmp_path):
    (tmp_path / "old").mkdir()
    with pytest.raises(ValueError, match=f"must not exist yet. Received: {tmp_path / 'old'}"):
        to_huggingface(written[0], tmp_path / "old")


def test_after_an_error_nothing_is_left(written, tmp_path, monkeypatch):
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


def test_a_configuration_says_what_the_model_does_not(written, tmp_path):
    model, folder = written
    for clash in ({"vocab_size": 7}, {"dtype": "float16"}, {"bos_token_id": 3}):
        ((key, value),) = clash.items()
        with pytest.raises(ValueError, match=f"Received: {key}={value!r}, where the model has"):
            to_huggingface(model, tmp_path / "new", config={"initializer_range": 0.1, **clash})
    longest = {"n_ctx": 5} if folder.name == "gpt2" else {"max_position_embeddings": 4096}
    to_huggingface(model, tmp_path / "new", config=longest)
    assert json.loads((tmp_path / "new" / "config.json").read_text()).items() >= longest.items()


@pytest.mark.parametrize("rope", [None, LLAMA3, {"rope_type": "linear", "factor": 3.0}])
def test_the_longest_text_follows_from_the_rope_where_nobody_says_it(rope, tmp_path):
    to_huggingface(ours({**LLAMA, "rope_parameters": rope}), tmp_path / "new")
    config = json.loads((tmp_path / "new" / "config.json").read_text())
    expected = {None: 2048, "llama3": 64, "linear": 3 * 2048}[rope and rope["rope_type"]]
    assert config["max_position_embeddings"] == expected


def test_the_size_of_a_file_is_positive(written, tmp_path):
    with pytest.raises(ValueError, match="max_shard_bytes=0"):
        to_huggingface(written[0], tmp_path / "new", 0)


ATTENTION_OPTIONS = (
    "use_bias", "num_key_value_heads", "value_dim", "sliding_window", "query_key_norm", "scale", "use_gate"
)  # fmt: skip


def model_like(layer=layers.DecoderLayer, decoder=layers.Decoder, embedded=None, **changes):
    """A language model of layers with the given parts; a list of values has one for each layer."""
    made = []
    for i in range(2):
        options = {key: value[i] if isinstance(value, list) else value for key, value in changes.items()}
        attention = {key: options.pop(key) for key in ATTENTION_OPTIONS if key in options}
        positions, heads = options.pop("positions"), options.pop("heads", 3)
        own = layer(
            attention=layers.MultiHeadAttention(
                heads, 4, positions=None if positions is None else positions(), **attention
            ),
            feed_forward=options.pop("feed_forward")(),
            dropout=0.0,
            **options,
        )
        made.append(own)
    return LanguageModel(11, 12, decoder(made), embedded)


def llama_like(**changes):
    """A model of Llama's parts, but for those given."""
    parts = {
        "positions": layers.RotaryPositions,
        "feed_forward": lambda: layers.GatedFeedForward(7),
        "normalize_first": True,
        "norm": "rms",
    }
    return model_like(**{**parts, **changes})


def gpt2_like(**changes):
    """A model of GPT-2's parts, but for those given."""
    parts = {
        "positions": None,
        "feed_forward": lambda: layers.FeedForward(7),
        "normalize_first": True,
        "embedded": layers.LearnedPositions(5),
    }
    return model_like(**{**parts, **changes})


@keras.saving.register_keras_serializable("tests")
class OtherLayer(layers.DecoderLayer):
    """A layer that may compute what no family's does."""


@keras.saving.register_keras_serializable("tests")
class OtherDecoder(layers.Decoder):
    """One whose layers may do what no family's do."""


@keras.saving.register_keras_serializable("tests")
class Tripled(layers.LinearScaling):
    """A scaling that no family has."""


ROTARY, ALIBI = layers.RotaryPositions, layers.ALiBi
PLAIN, GATED = layers.FeedForward, layers.GatedFeedForward
WRONG_PARTS = [
    (lambda: keras.Sequential(), "`model` of a 'gpt2' model must be a `LanguageModel`. Received: model=<Seq"),
    (
        lambda: keras.Sequential(),
        "`model` of a 'llama' model must be a `LanguageModel`. Received: model=<Seq",
    ),
    (lambda: llama_like(embedded=layers.PositionalEncoding()), "positions=<PositionalEncoding"),
    (
        lambda: llama_like(positions=None),
        "`attention_positions` of a 'llama' model must be a `RotaryPositions`",
    ),
    (lambda: gpt2_like(feed_forward=lambda: GATED(7)), "feed_forward=<GatedFeedForward"),
    (lambda: gpt2_like(feed_forward=lambda: PLAIN(7, "elu")), "activation=<function elu"),
    (lambda: gpt2_like(feed_forward=lambda: PLAIN(7, use_bias=False)), "feed_forward_bias=False"),
    (lambda: gpt2_like(normalize_first=False), "normalize_first=False"),
    (lambda: gpt2_like(sandwich_norm=True), "sandwich_norm=True"),
    (lambda: gpt2_like(norm="rms"), "norm=<RMSNormalization"),
    (lambda: gpt2_like(use_bias=False), "attention_bias=False"),
    (lambda: gpt2_like(num_key_value_heads=1), "num_key_value_heads=1"),
    (lambda: gpt2_like(heads=2), "`key_dim` of a 'gpt2' model must be 12. Received: key_dim=8"),
    (lambda: gpt2_like(value_dim=5), "value_dim=5"),
    (lambda: gpt2_like(positions=ALIBI), "attention_positions=<ALiBi"),
    (lambda: gpt2_like(sliding_window=3), "sliding_window=3"),
    (lambda: gpt2_like(use_gate=True), "use_gate=True"),
    (lambda: gpt2_like(query_key_norm="rms"), "query_key_norm='rms'"),
    (lambda: gpt2_like(scale=0.3), "`scale` of a 'gpt2' model must be 0.5. Received: scale=0.3"),
    (lambda: llama_like(feed_forward=lambda: PLAIN(7)), "feed_forward=<FeedForward"),
    (
        lambda: llama_like(feed_forward=lambda: layers.MixtureOfExperts([GATED(7), GATED(7)])),
        "feed_forward=<MixtureOfExperts",
    ),
    (lambda: llama_like(feed_forward=lambda: GATED(7, "elu")), "activation=<function elu"),
    (lambda: llama_like(positions=ALIBI), "attention_positions=<ALiBi"),
    (lambda: llama_like(positions=lambda: ROTARY(scaling=Tripled(3.0))), "scaling=Tripled(factor=3.0)"),
    (lambda: llama_like(norm="layer"), "norm=<LayerNormalization"),
    (lambda: llama_like(normalize_first=False), "`normalize_first` of a 'llama'"),
    (lambda: llama_like(sandwich_norm=True), "sandwich_norm=True"),
    (lambda: llama_like(decoder=OtherDecoder), "decoder=<OtherDecoder"),
    (lambda: gpt2_like(decoder=OtherDecoder), "`decoder` of a 'gpt2' model must be a `Decoder`"),
    (lambda: llama_like(value_dim=5), "value_dim=5"),
    (lambda: llama_like(sliding_window=[3, 5]), "attention.sliding_window=5"),
    (lambda: llama_like(query_key_norm="layer"), "query_key_norm='layer'"),
    (lambda: llama_like(scale=1.0), "scale=1.0"),
    (lambda: llama_like(heads=5), "d_model=12, num_heads=5"),
    # What only one layer has.
    (lambda: gpt2_like(layer=OtherLayer), "layer=<OtherLayer"),
    (lambda: gpt2_like(scale=[None, 1.0]), "must be alike. Received: attention.scale=1.0"),
    (lambda: gpt2_like(use_bias=[True, False]), "attention.use_bias=False"),
    (lambda: gpt2_like(layer_norm_epsilon=[1e-6, 1e-5]), "residual.epsilon=1e-05"),
    (lambda: gpt2_like(feed_forward=[lambda: PLAIN(7), lambda: PLAIN(5)]), "feed_forward.d_ff=5"),
    (
        lambda: gpt2_like(feed_forward=[lambda: PLAIN(7), lambda: PLAIN(7, "gelu")]),
        "feed_forward.activation=",
    ),
    (lambda: llama_like(positions=[ROTARY, lambda: ROTARY(500.0)]), "attention.positions=("),
    (lambda: llama_like(num_key_value_heads=[3, 1]), "attention.num_key_value_heads=1"),
    (lambda: llama_like(feed_forward=[lambda: GATED(7), lambda: PLAIN(7)]), "feed_forward=<FeedForward"),
]


@pytest.mark.parametrize(
    ("make", "expected"), WRONG_PARTS, ids=lambda x: x[:60] if isinstance(x, str) else ""
)
def test_parts_that_a_family_does_not_have_are_named(make, expected, tmp_path):
    assert_refused(make(), expected, tmp_path)


def test_models_of_their_parts_are_written(tmp_path):
    """What the test above changes is all that is wrong with its models."""
    for make in (gpt2_like, llama_like):
        to_huggingface(make(), tmp_path / make.__name__)
        assert from_huggingface(tmp_path / make.__name__).vocab_size == 11


def test_a_quantized_model_is_refused(tmp_path):
    model = gpt2_like()
    model.quantize("int8")
    assert_refused(
        model, "`model` must not be quantized. Received: ", tmp_path, match="must not be quantized"
    )


def test_the_weights_of_lora_are_added(tmp_path):
    model = ours(GPT2)
    projection = model.decoder.layers[1].self_attention.query_dense
    before = keras.ops.convert_to_numpy(projection.kernel)
    projection.enable_lora(2)
    for weight in projection.trainable_variables:
        weight.assign(np.full(weight.shape, 0.1))
    ids = np.arange(2 * 11).reshape(2, 11)
    to_huggingface(model, tmp_path / "new")
    again = from_huggingface(tmp_path / "new")
    found = keras.ops.convert_to_numpy(again.decoder.layers[1].self_attention.query_dense.kernel)
    assert np.abs(found - before).max() > 0.01
    np.testing.assert_allclose(*(keras.ops.convert_to_numpy(each(ids)) for each in (again, model)), atol=1e-5)


# What it costs.


def run(code, *arguments, **variables):
    package = pathlib.Path(keras_transformer.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(package), **variables}
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip().splitlines()[-1]


@pytest.mark.slow
def test_importing_it_imports_no_other_library():
    others = ("torch", "transformers", "safetensors", "tensorflow_text", "tokenizers")
    code = f"import sys, keras_transformer.huggingface; print([m for m in {others!r} if m in sys.modules])"
    assert run(code) == "[]"


# A process for each: what was freed before would hide what is taken.
IN_MEGABYTES = """
import pathlib, sys

import keras

from keras_transformer.huggingface import FAMILIES, from_huggingface, to_huggingface


def memory(kind):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(kind)) / 1024


def bytes_of(model):
    return 4 * model.count_params() / 2**20


folder, reads = pathlib.Path(sys.argv[1]), sys.argv[2] == "read"
config = {"model_type": sys.argv[3], "vocab_size": 1009, "eos_token_id": 2, "bos_token_id": 1}
sizes = {"n_embd": 768, "n_layer": 14, "n_head": 12} if sys.argv[3] == "gpt2" else {
    "hidden_size": 768, "num_hidden_layers": 13, "num_attention_heads": 12, "intermediate_size": 2048}
if reads:
    FAMILIES[sys.argv[3]].make_model({**config, "n_layer": 1, "num_hidden_layers": 1, "n_embd": 12, "n_head": 2,
        "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 8})  # what starts once
    before = memory("VmRSS")
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    model = from_huggingface(folder)
    print((memory("VmHWM") - before) / bytes_of(model), bytes_of(model))
else:
    model = FAMILIES[sys.argv[3]].make_model({**config, **sizes})
    before = memory("VmRSS")
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    to_huggingface(model, folder)
    print((memory("VmHWM") - before) / bytes_of(model) + 1, bytes_of(model))
"""


@pytest.mark.slow
@pytest.mark.skipif(not pathlib.Path("/proc/self/clear_refs").exists(), reason="Linux says how much memory")
@pytest.mark.parametrize("family", ["llama"])
def test_memory_is_that_of_the_model_and_little_more(family, tmp_path):
    # glibc gives back at once what is freed: what it would keep depends on the backend's threads, not on what is held.
    libc = {"MALLOC_MMAP_THRESHOLD_": "65536"}
    for way in ("write", "read"):
        share, megabytes = map(float, run(IN_MEGABYTES, tmp_path / "model", way, family, **libc).split())
        assert megabytes > 350
        print(f"{family}: {way} {share:.2f} x {megabytes:.0f} MB")
        assert 0.9 < share <= 1.3
    shutil.rmtree(tmp_path / "model")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (
            {"vocab_size": 3_000_000_000},
            r"`vocab_size` of config.json must be at most \d+, .* vocab_size=3000000000",
        ),
        ({"n_layer": 10**12}, "`n_layer` of config.json must be at most"),
        ({"n_head": "two"}, "n_head"),
        ({"vocab_size": [1]}, "vocab_size"),
        ({"activation_function": ["relu"]}, "config.json of .* must describe a 'gpt2' model"),
        ({"layer_norm_epsilon": {}}, "layer_norm_epsilon|must describe"),
        ({"eos_token_id": {}}, "eos_token_id"),
    ],
)
def test_a_config_that_nothing_can_be_made_of_is_refused(tmp_path, changes, named):
    to_huggingface(ours(GPT2), tmp_path / "gpt2")
    path = tmp_path / "gpt2" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(ValueError, match=named):
        from_huggingface(tmp_path / "gpt2")


def test_progress_is_shown_where_it_is_asked_for(tmp_path, capfd):
    to_huggingface(ours(GPT2), tmp_path / "new")
    from_huggingface(tmp_path / "new")
    assert "tensor" not in capfd.readouterr().err
    from_huggingface(tmp_path / "new", verbose=True)
    assert "tensor" in capfd.readouterr().err
