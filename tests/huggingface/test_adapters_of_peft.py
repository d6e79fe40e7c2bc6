"""Adapters of LoRA that PEFT wrote: merged into their base model, or refused."""

import functools
import json
import pathlib
import re
import tempfile

import numpy as np
import pytest
from contracts import refuses
from families import CONFIGS, GPT2, LLAMA, own_model
from safetensors.numpy import load_file, save_file

from keras_transformer.cli.convert import convert
from keras_transformer.huggingface import (
    FAMILIES,
    from_huggingface,
    to_huggingface,
    tokenizers_from_huggingface,
)
from keras_transformer.huggingface.adapters import joined

ADAPTER = {"peft_type": "LORA", "r": 3, "lora_alpha": 6, "target_modules": ["q_proj"], "bias": "none"}
QUERY, SEVENTH = (f"model.layers.{i}.self_attn.q_proj" for i in (0, 7))
UNKNOWN = "model.layers.0.unknown"
BASES = {
    "llama": {**LLAMA, "num_hidden_layers": 1},
    "tied": {**CONFIGS["llama-tied"], "num_hidden_layers": 1},
    "gpt2": {**GPT2, "n_layer": 1},
    "bert": {**CONFIGS["bert-masked"], "num_hidden_layers": 1},
}
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat"]
RNG = np.random.default_rng(0)


@functools.cache
def base_of(case):
    """The files of a base model: a dict from a name to bytes."""
    with tempfile.TemporaryDirectory() as folder:
        to_huggingface(own_model(BASES[case]), f"{folder}/base", family=BASES[case]["model_type"])
        return {path.name: path.read_bytes() for path in pathlib.Path(folder, "base").iterdir()}


def written(folder, config, tensors, **changes):
    """Writes a base model, of a configuration or of one of `BASES`, and an adapter of it."""
    if isinstance(config, dict):
        to_huggingface(own_model(config), folder / "base", family=config["model_type"])
    else:
        (folder / "base").mkdir()
        for name, content in base_of(config).items():
            (folder / "base" / name).write_bytes(content)
    (folder / "adapter").mkdir()
    described = {**ADAPTER, "base_model_name_or_path": str(folder / "base"), **changes}
    (folder / "adapter" / "adapter_config.json").write_text(json.dumps(described))
    stored = {f"base_model.model.{name}": np.float32(value) for name, value in tensors.items()}
    save_file(stored, folder / "adapter" / "adapter_model.safetensors")
    return folder / "adapter"


def pair(module, inputs, outputs, rank=3):
    """The two random matrices of a module, by their names."""
    low, high = RNG.normal(size=(rank, inputs)), RNG.normal(size=(outputs, rank))
    return {f"{module}.lora_A.weight": low, f"{module}.lora_B.weight": high}


def assert_merged(model, base, changed):
    """A model has the tensors of the base model's folder; `changed` is what is added to some, by name."""
    family = FAMILIES[json.loads((base / "config.json").read_text())["model_type"]]
    stored = load_file(base / "model.safetensors")
    found = {tensor.name: tensor.value() for tensor in family.make_tensors(model)}
    assert changed.keys() <= found.keys()
    for name, value in stored.items():
        expected = value + changed.get(name, 0.0)
        np.testing.assert_allclose(found[name], expected, rtol=0, atol=1e-5, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(("changes", "scales"), [
    ({}, (2.0, 2.0)),
    ({"use_rslora": True}, (6 / 3**0.5, 6 / 3**0.5)),
    ({"alpha_pattern": {"layers.0.mlp.up_proj": 3}}, (2.0, 1.0)),
    ({"alpha_pattern": {r"^model.*q_proj": 9}}, (3.0, 2.0)),
], ids=["plain", "rslora", "pattern", "expression"])  # fmt: skip
def test_products_are_added_to_the_base_model(changes, scales, tmp_path):
    up = "model.layers.0.mlp.up_proj"
    tensors = {**pair(QUERY, 18, 60), **pair(up, 18, 13)}
    folder = written(tmp_path, "llama", tensors, **changes)
    changed = {
        f"{name}.weight": scale * tensors[f"{name}.lora_B.weight"] @ tensors[f"{name}.lora_A.weight"]
        for name, scale in zip((QUERY, up), scales, strict=True)
    }
    assert_merged(from_huggingface(folder), tmp_path / "base", changed)


def test_a_rank_of_its_own_and_matrices_of_the_other_order(tmp_path):
    name = "transformer.h.0.attn.c_proj"
    tensors = pair(name, 15, 15, rank=2)
    folder = written(tmp_path, "gpt2", tensors, rank_pattern={"c_proj": 2}, fan_in_fan_out=True)
    added = 3.0 * (tensors[f"{name}.lora_B.weight"] @ tensors[f"{name}.lora_A.weight"]).T
    assert_merged(from_huggingface(folder), tmp_path / "base", {f"{name}.weight": added})


def test_the_base_model_may_be_given_and_is_needed(tmp_path):
    tensors = pair(QUERY, 18, 60)
    folder = written(tmp_path, "llama", tensors, base_model_name_or_path="some/name")
    refuses(r"`base` must be the folder of the adapter's base model.*some/name", from_huggingface, folder)
    added = 2.0 * tensors[f"{QUERY}.lora_B.weight"] @ tensors[f"{QUERY}.lora_A.weight"]
    for base in (tmp_path / "base", str(tmp_path / "base")):
        model = from_huggingface(folder, base=base)
        assert_merged(model, tmp_path / "base", {f"{QUERY}.weight": added})
    with pytest.raises(ValueError, match=r"`base` is for a folder with adapter_config.json"):
        from_huggingface(tmp_path / "base", base=tmp_path / "base")


def test_int8_is_that_of_the_sum(tmp_path):
    tensors = pair(QUERY, 18, 60)
    folder = written(tmp_path, "llama", tensors)
    expected = from_huggingface(folder)
    expected.quantize("int8")
    found = from_huggingface(folder, precision="int8")
    for weight, other in zip(found.weights, expected.weights, strict=True):
        rounding = 1 if weight.dtype == "int8" else 1e-5  # the sum is computed in another order
        np.testing.assert_allclose(np.array(weight, "float32"), np.array(other, "float32"), atol=rounding)


def test_a_classifier_over_a_base_model_with_another_head(tmp_path):
    query = "bert.encoder.layer.0.attention.self.query"
    head = {"classifier.weight": RNG.normal(size=(3, 15)), "classifier.bias": RNG.normal(size=3)}
    pooler = {"weight": RNG.normal(size=(15, 15)), "bias": RNG.normal(size=15)}
    pooler = {f"bert.pooler.dense.{name}": np.float32(value) for name, value in pooler.items()}
    tensors = {**pair(query, 15, 15), **head}
    folder = written(tmp_path, "bert", tensors, task_type="SEQ_CLS", modules_to_save=["classifier"])
    path = tmp_path / "base" / "model.safetensors"
    save_file({**load_file(path), **pooler}, path)
    (tmp_path / "adapter" / "vocab.txt").write_text("\n".join(PIECES))
    model = from_huggingface(folder)
    assert model.head.num_classes == 3
    np.testing.assert_allclose(np.array(model.head.dense.kernel), head["classifier.weight"].T, rtol=1e-6)
    servable = convert(folder, tmp_path / "own")
    assert type(servable).__name__ == "Classifier"
    (tokenizer,) = tokenizers_from_huggingface(folder)
    assert tokenizer.tokenize("the cat").numpy().tolist() == [5, 6]


def test_a_whole_model_with_the_files_of_an_adapter_is_refused(tmp_path):
    folder = written(tmp_path, "llama", pair(QUERY, 18, 60))
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_bytes((tmp_path / "base" / name).read_bytes())
    weights, pickled = folder / "adapter_model.safetensors", folder / "adapter_model.bin"
    for _ in range(2):
        refuses("a whole model or an adapter, not both", from_huggingface, folder)
        weights.rename(pickled)
        weights, pickled = pickled, weights
    (folder / "model.safetensors").unlink()
    from_huggingface(folder)


@pytest.mark.parametrize(
    "name", ["adapter/adapter_model.safetensors", "base/model.safetensors", "base/config.json"]
)
def test_an_error_names_the_file_that_the_user_knows(name, tmp_path):
    """The files are read through links in a temporary folder."""
    folder = written(tmp_path, "llama", pair(QUERY, 18, 60))
    (tmp_path / name).write_bytes(b"{")
    refuses(re.escape(str(tmp_path / name)), from_huggingface, folder)


def test_a_link_to_itself_is_refused(tmp_path):
    folder = written(tmp_path, "llama", pair(QUERY, 18, 60))
    (folder / "adapter_model.safetensors").unlink()
    (folder / "adapter_model.safetensors").symlink_to("adapter_model.safetensors")
    with pytest.raises((ValueError, OSError), match=r"adapter_model\.safetensors"):
        from_huggingface(folder)


def test_a_pickled_adapter_is_refused(tmp_path):
    folder = written(tmp_path, "llama", pair(QUERY, 18, 60))
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    refuses(r"must hold adapter_model\.safetensors: a \.bin file is not read", from_huggingface, folder)


def test_tokenizer_files_come_from_the_base_without_an_own_vocabulary(tmp_path):
    for name in ("base", "adapter"):
        (tmp_path / name).mkdir()
    for name in ("config.json", "tokenizer.json", "chat_template.jinja"):
        (tmp_path / "base" / name).write_text("{}")
    described = {"base_model_name_or_path": str(tmp_path / "base")}
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(described))
    (tmp_path / "adapter" / "chat_template.jinja").write_text("new")
    with joined(tmp_path / "adapter") as whole:
        assert (whole / "tokenizer.json").is_file()
        assert (whole / "chat_template.jinja").read_text() == "new"
    (tmp_path / "adapter" / "vocab.json").write_text("{}")
    with joined(tmp_path / "adapter") as whole:
        assert not (whole / "tokenizer.json").is_file()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type='IA3'"),
        ({"use_dora": True}, "use_dora=True"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights='pissa'"),
        ({"trainable_token_indices": [1]}, r"trainable_token_indices=\[1\]"),
        ({"r": 4}, "r=4, rank=3"),
        ({"lora_alpha": None}, "lora_alpha=None"),
        ({"rotation": 3}, "rotation=3"),
    ],
)
def test_other_adapters_are_refused(changes, message, tmp_path):
    folder = written(tmp_path, "llama", pair(QUERY, 18, 60), **changes)
    refuses(message, from_huggingface, folder)


@pytest.mark.parametrize(("base", "tensors", "message"), [
    ("llama", pair(SEVENTH, 18, 60), f"tensor='{SEVENTH}.weight'"),
    ("llama", {f"{QUERY}.lora_A.weight": np.ones((3, 18))}, "two matrices for each tensor"),
    ("llama", pair(QUERY, 18, 59), "the adapter of .* has shapes"),
    ("llama", {f"{UNKNOWN}.weight": np.ones(3)}, f"'{UNKNOWN}.weight' is left over"),
    ("tied", pair("model.embed_tokens", 18, 31), "must not change a tensor that is tied"),
], ids=["no-layer", "half", "shape", "left-over", "tied"])  # fmt: skip
def test_adapters_that_do_not_fit_are_refused(base, tensors, message, tmp_path):
    folder = written(tmp_path, base, tensors)
    refuses(message, from_huggingface, folder)


@pytest.mark.parametrize("case", ["llama", "bert-masked", "gpt2"])
def test_outputs_are_those_of_peft(case, tmp_path):
    peft = pytest.importorskip("peft")
    pytest.importorskip("torch")
    from families import difference, torch_model

    there = torch_model(CONFIGS[case])
    there.save_pretrained(tmp_path / "base")
    targets = {
        "llama": ["q_proj", "down_proj"],
        "bert-masked": ["query", "dense"],
        "gpt2": ["c_attn", "c_proj"],
    }
    options = {"r": 3, "lora_alpha": 5, "target_modules": targets[case], "init_lora_weights": False}
    adapted = peft.get_peft_model(there, peft.LoraConfig(**options))
    adapted.peft_config["default"].base_model_name_or_path = str(tmp_path / "base")
    adapted.save_pretrained(tmp_path / "adapter")
    assert difference(from_huggingface(tmp_path / "adapter"), adapted.merge_and_unload()) < 1e-4
