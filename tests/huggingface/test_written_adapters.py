"""Adapters that this library trained, as folders of PEFT: read again they give the model that was tuned."""

import json

import keras
import numpy as np
import pytest
from families import CONFIGS, inputs_of, own_model, own_outputs

from keras_transformer.huggingface import from_huggingface, to_huggingface
from keras_transformer.huggingface.adapters import HEAD_CONFIG
from keras_transformer.keras_internals import sublayers
from keras_transformer.models import ClassificationHead, TaggingHead
from keras_transformer.training import add_adapters

DENSE = (keras.layers.Dense, keras.layers.EinsumDense)


def tuned(config, folder, **adapters):
    """A base model's folder, and the model with adapters of random numbers."""
    base = own_model(config)
    to_huggingface(base, folder / "base", family=config["model_type"])
    model = from_huggingface(folder / "base")
    add_adapters(model, **adapters)
    change(model)
    return model


def change(model):
    """Gives the weights that are trained random numbers."""
    rng = np.random.default_rng(1)
    for weight in model.trainable_weights:
        weight.assign(rng.normal(size=weight.shape, scale=0.3))


def assert_read_back(model, folder):
    to_huggingface(model, folder / "adapter", adapter=folder / "base")
    names = {path.name for path in (folder / "adapter").iterdir()}
    # With a config.json, transformers would look for a whole model.
    assert names - {HEAD_CONFIG} == {"adapter_config.json", "adapter_model.safetensors"}
    # A `SpanHead` is a `TaggingHead` without labels.
    assert (HEAD_CONFIG in names) is (type(getattr(model, "head", None)) in (ClassificationHead, TaggingHead))
    inputs, _, _ = inputs_of(model)
    read = from_huggingface(folder / "adapter")
    for found, expected in zip(own_outputs(read, inputs), own_outputs(model, inputs), strict=True):
        np.testing.assert_allclose(found, expected, atol=2e-4, rtol=1e-4)
    return json.loads((folder / "adapter" / "adapter_config.json").read_text())


@pytest.mark.sampled
@pytest.mark.parametrize("case", CONFIGS)
def test_adapters_of_every_dense_layer_are_read_back(case, tmp_path):
    # Patches are a convolution in transformers.
    targets = ["attention_output", "inner"] if case.startswith("vit") else None
    model = tuned(CONFIGS[case], tmp_path, rank=2, targets=targets)
    before = own_outputs(from_huggingface(tmp_path / "base"), inputs_of(model)[0])[0]
    assert np.abs(own_outputs(model, inputs_of(model)[0])[0] - before).max() > 0.01
    config = assert_read_back(model, tmp_path)
    assert config["r"] >= 2 and config["modules_to_save"] in (None, ["classifier"], ["score"])


def test_target_modules_are_the_names_of_transformers(tmp_path):
    config = assert_read_back(
        tuned(CONFIGS["llama"], tmp_path, rank=3, targets=["query", "value"], alpha=5), tmp_path
    )
    assert config["target_modules"] == ["q_proj", "v_proj"]
    assert (config["r"], config["lora_alpha"], config["task_type"]) == (3, 5, "CAUSAL_LM")
    assert config["rank_pattern"] == config["alpha_pattern"] == {}


def test_a_layer_alone_has_its_whole_name(tmp_path):
    model = tuned(CONFIGS["llama"], tmp_path, rank=3, targets=["layer_1/self_attention/key"])
    config = assert_read_back(model, tmp_path)
    assert config["target_modules"] == ["model.layers.1.self_attn.k_proj"]


def test_layers_of_other_ranks_and_alphas_are_patterns(tmp_path):
    model = tuned(CONFIGS["llama"], tmp_path, rank=2, targets=["query"])
    model.decoder.layers[0].feed_forward.inner.enable_lora(4, lora_alpha=3)
    change(model)
    config = assert_read_back(model, tmp_path)
    other = {"model.layers.0.mlp.up_proj": 4}
    assert config["rank_pattern"] == other and config["alpha_pattern"] == {
        **other,
        "model.layers.0.mlp.up_proj": 3,
    }


@pytest.mark.parametrize("alphas", [(2, 2, 2), (2, 3, 5)])
def test_kernels_that_a_checkpoint_holds_as_one_get_one_adapter(alphas, tmp_path):
    model = tuned(CONFIGS["gpt2"], tmp_path, rank=2, targets=["attention_output"])
    attention = model.decoder.layers[0].self_attention
    layers = attention.query_dense, attention.key_dense, attention.value_dense
    for layer, alpha in list(zip(layers, alphas, strict=True))[:: 1 if alphas[0] == alphas[1] else 2]:
        layer.enable_lora(2, lora_alpha=alpha)
    change(model)
    assert assert_read_back(model, tmp_path)["fan_in_fan_out"]


def test_weights_trained_beside_adapters_are_written_too(tmp_path):
    model = tuned(CONFIGS["electra-ForSequenceClassification"], tmp_path, rank=2, targets=["query"])
    for weight in [*model.pooler.weights, *model.head.weights]:
        weight.trainable = True
    change(model)
    config = assert_read_back(model, tmp_path)
    assert config["task_type"] == "SEQ_CLS"
    assert config["modules_to_save"] == ["classifier"]


@pytest.mark.parametrize("base", ["bert-model", "bert-named"])
def test_a_new_head_keeps_its_labels(base, tmp_path):
    """An adapter answered with numbers; over a base model with another number of labels it was not read."""
    to_huggingface(own_model(CONFIGS[base]), tmp_path / "base", family="bert")
    labels = {
        "id2label": {str(i): f"kind {i}" for i in range(5)},
        "problem_type": "multi_label_classification",
    }
    model = own_model({**CONFIGS["bert-named"], **labels})
    add_adapters(model, 2, targets=["query"])
    for weight in [*model.pooler.weights, *model.head.weights]:
        weight.trainable = True
    to_huggingface(model, tmp_path / "adapter", adapter=tmp_path / "base")
    head = from_huggingface(tmp_path / "adapter").head
    assert head.labels == [f"kind {i}" for i in range(5)] and head.multi_label
    (tmp_path / "adapter" / HEAD_CONFIG).unlink()
    assert from_huggingface(tmp_path / "adapter").head.num_classes == 5
    with open(tmp_path / "adapter" / "adapter_model.safetensors", "wb") as file:
        number = {"base_model.model.classifier.weight": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}}
        header = json.dumps(number).encode()
        file.write(len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises(ValueError, match="must hold the head of its task"):
        from_huggingface(tmp_path / "adapter")


def test_what_is_no_adapter_is_refused(tmp_path):
    model = own_model(CONFIGS["llama"])
    with pytest.raises(ValueError, match="`model` must have adapters"):
        to_huggingface(model, tmp_path / "adapter", adapter="base")
    add_adapters(model, 2)
    with pytest.raises(ValueError, match="leave them out where `adapter` is given"):
        to_huggingface(model, tmp_path / "adapter", adapter="base", config={"a": 1})
    assert not (tmp_path / "adapter").exists()


def test_adapters_of_patches_are_refused_by_name(tmp_path):
    model = own_model(CONFIGS["vit-classes"])
    add_adapters(model, 2)
    with pytest.raises(ValueError, match=r"belongs to a matrix.*patch_embeddings\.projection\.weight"):
        to_huggingface(model, tmp_path / "adapter", adapter="base")


def test_int8_kernels_keep_their_adapters(tmp_path):
    to_huggingface(own_model(CONFIGS["llama"]), tmp_path / "base", family="llama")
    model = from_huggingface(tmp_path / "base", precision="int8")
    add_adapters(model, 2)
    change(model)
    to_huggingface(model, tmp_path / "adapter", adapter=tmp_path / "base")
    exact = from_huggingface(tmp_path / "base")
    add_adapters(exact, 2)
    adapted = [[each for each in sublayers(own) if isinstance(each, DENSE)] for own in (model, exact)]
    for quantized, plain in zip(*adapted, strict=True):
        plain.lora_kernel_a.assign(quantized.lora_kernel_a)
        plain.lora_kernel_b.assign(quantized.lora_kernel_b)
    inputs = inputs_of(exact)[0]
    found = from_huggingface(tmp_path / "adapter")
    for own, expected in zip(own_outputs(found, inputs), own_outputs(exact, inputs), strict=True):
        np.testing.assert_allclose(own, expected, atol=2e-4, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["llama", "gpt2", "bart", "t5", "electra-ForSequenceClassification"])
def test_peft_loads_the_folder(case, tmp_path):
    peft, torch = pytest.importorskip("peft"), pytest.importorskip("torch")
    from families import torch_class, torch_outputs

    # Of two adapters one has the factor of rsLoRA.
    model = tuned(
        CONFIGS[case], tmp_path, rank=2, rank_stabilized=case == "llama", dropout=0.1 * (case == "llama")
    )
    to_huggingface(model, tmp_path / "adapter", adapter=tmp_path / "base")
    there = torch_class(CONFIGS[case])[0].from_pretrained(tmp_path / "base").eval()
    if "Classification" in case:
        # transformers finds the base model itself.
        there = torch_class(CONFIGS[case])[0].from_pretrained(tmp_path / "adapter").eval()
    else:
        there = peft.PeftModel.from_pretrained(there, tmp_path / "adapter").eval()
    own, other, real = inputs_of(model)
    found, expected = own_outputs(model, own)[0], torch_outputs(there, other)[0]
    real = np.ones(found.shape[:-1], bool) if real is None or real.shape != found.shape[:-1] else real
    np.testing.assert_allclose(found[real.astype(bool)], expected[real.astype(bool)], atol=5e-4)
    assert torch.is_grad_enabled()


def test_an_adapter_says_its_dropout_and_the_root_of_its_rank(tmp_path):
    model = tuned(CONFIGS["llama"], tmp_path, rank=3, alpha=6, dropout=0.25, rank_stabilized=True)
    config = assert_read_back(model, tmp_path)
    expected = {"use_rslora": True, "lora_dropout": 0.25, "r": 3, "lora_alpha": pytest.approx(6)}
    assert {name: config[name] for name in expected} == expected
