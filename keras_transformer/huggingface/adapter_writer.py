"""Writing of adapters of LoRA as PEFT loads them: adapter_config.json and adapter_model.safetensors.

The tensors that a family describes for `to_huggingface` name the modules, so no family needs a table for PEFT.
"""

import collections
import math

import numpy as np
from keras import ops

from keras_transformer.checks import check
from keras_transformer.huggingface.adapters import ADAPTER, ADAPTER_CONFIG, BEGINNING, HEAD_CONFIG
from keras_transformer.huggingface.files import write_json, write_tensor_file
from keras_transformer.huggingface.tensors import Tensor, without_copies
from keras_transformer.keras_internals import sublayers
from keras_transformer.models import EncoderModel, LanguageModel
from keras_transformer.training.adapters import DENSE, without_adapters

# PEFT's `task_type` by the end of a class of transformers, and the modules that PEFT saves whole for these tasks.
TASKS = {"ForSequenceClassification": "SEQ_CLS", "ForTokenClassification": "TOKEN_CLS"}
HEADS = ("classifier", "score")


def write_adapter(folder, model, family, config, base):
    """Writes the adapters of a model, and the weights that are trained beside them, into a folder.

    A model with labels has its config.json there too, as `HEAD_CONFIG`.

    Args:
        folder: A `pathlib.Path` of a folder that exists.
        model: The model.
        family: Its `Family`.
        config: The config.json of the model, a dict.
        base: The folder or the name of the model before the training, which adapter_config.json names.

    Raises:
        ValueError: If the model has no adapters, or one that PEFT cannot have.
    """
    with without_adapters(model) as adapted:
        check(adapted, "`model` must have adapters of LoRA where `adapter` is given.", model=model)
        layers = {id(layer.kernel): layer for layer in adapted}
        tensors = list(without_copies(family.make_tensors(model)))
    parts = {tensor.name: [layers.pop(id(weight), None) for weight in tensor.weights] for tensor in tensors}
    stabilized = all(getattr(layer, "lora_rank_stabilized", False) for layer in adapted)
    lost = [layer.path for layer in layers.values()]
    check(not lost, f"Each adapter must belong to a tensor of a {family.model_type!r} model.", layers=lost)
    task = _task(model, config)
    heads = HEADS if task in TASKS.values() else ()
    # These have the adapters in their values. The list keeps all of them, as `without_copies` compares their ids.
    merged = list(without_copies(family.make_tensors(model))) if heads else []
    whole = {tensor.name: tensor for tensor in merged if tensor.name.partition(".")[0] in heads}
    tensors = [tensor for tensor in tensors if tensor.name not in whole]
    trained = {
        _module(tensor)
        for tensor in tensors
        if not any(parts[tensor.name])
        and any(getattr(weight, "trainable", False) for weight in tensor.weights)
    }
    sizes, written = {}, [tensor._replace(name=BEGINNING + name) for name, tensor in whole.items()]
    for tensor in tensors:
        if any(parts[tensor.name]):
            low, high, rank, scale = _matrices(tensor, parts[tensor.name])
            sizes[_module(tensor)] = rank, scale * (rank**0.5 if stabilized else rank)
            for name, value in (("lora_A", low), ("lora_B", high)):
                axes = tuple(range(value.ndim))
                written.append(
                    Tensor(f"{BEGINNING}{_module(tensor)}.{name}.weight", value.shape, (value,), axes)
                )
        elif _module(tensor) in trained:
            written.append(tensor._replace(name=BEGINNING + tensor.name))
    rule = "`model` must have an adapter outside its head where `adapter` is given."
    check(sizes, rule, heads=sorted(whole))
    (rank, alpha), _ = collections.Counter(sizes.values()).most_common(1)[0]
    write_tensor_file(folder / ADAPTER, written)
    if heads:
        write_json(folder / HEAD_CONFIG, config)
    write_json(
        folder / ADAPTER_CONFIG,
        {
            "peft_type": "LORA",
            "task_type": task,
            "base_model_name_or_path": str(base),
            "r": rank,
            "lora_alpha": alpha,
            "rank_pattern": {name: own for name, (own, _) in sizes.items() if own != rank},
            "alpha_pattern": {name: own for name, (_, own) in sizes.items() if own != alpha},
            "target_modules": _shortest(sizes, {_module(each) for each in (*tensors, *whole.values())}),
            "modules_to_save": sorted(trained | {name.partition(".")[0] for name in whole}) or None,
            "fan_in_fan_out": any(any(parts[tensor.name]) and tensor.axes == (0, 1) for tensor in tensors),
            "use_rslora": stabilized,
            "lora_dropout": max(getattr(layer, "lora_dropout", 0.0) for layer in adapted),
            "bias": "none",
            "inference_mode": True,
        },
    )


def targets_of(model, family, names):
    """Returns the `targets` of `add_adapters` for names of layers of this library or of modules of transformers.

    Args:
        model: The model, without adapters.
        family: Its `Family`.
        names: List of str, each the end of a layer's path or of a module's name, such as "query" or "q_proj".

    Returns:
        A list of layers and, where no module has the name, of str.
    """
    layers = {id(layer.kernel): layer for layer in sublayers(model) if isinstance(layer, DENSE)}
    targets = []
    for name in names:
        modules = [each for each in family.make_tensors(model) if f".{_module(each)}".endswith(f".{name}")]
        named = [layers[id(weight)] for each in modules for weight in each.weights if id(weight) in layers]
        # "query" and "value" name modules of BERT and layers of every model.
        targets += named or [name]
    return targets


def _module(tensor):
    """Returns the name of the module of transformers that holds a tensor."""
    return tensor.name.rpartition(".")[0]


def _matrices(tensor, layers):
    """Returns the matrices of an adapter as PEFT has them, its rank and the factor of their product.

    A tensor that holds several kernels side by side gets one adapter: the ranks are those of all its layers together,
    and each layer's outputs read their own.

    Args:
        tensor: The `Tensor` of the base model, a matrix.
        layers: The layer with an adapter of each of its kernels, or None.

    Returns:
        `(rank, inputs)`, `(outputs, rank)`, an int, a float.
    """
    rule = "An adapter of PEFT belongs to a matrix: leave the layer out of the `targets` of `add_adapters`."
    check(len(tensor.shape) == 2, rule, tensor=tensor.name, shape=tensor.shape)
    inputs, outputs = (tensor.shape[axis] for axis in tensor.axes)
    adapted = [layer for layer in layers if layer is not None]
    rank, scale = sum(layer.lora_rank for layer in adapted), adapted[0].lora_alpha / adapted[0].lora_rank
    joined_low, joined_high = np.zeros((rank, inputs), "float32"), np.zeros((outputs, rank), "float32")
    row, column = 0, 0
    for layer, weight in zip(layers, tensor.weights, strict=True):
        width = math.prod(weight.shape) // inputs
        if layer is not None:
            low, high = (ops.convert_to_numpy(each).T for each in (layer.lora_kernel_a, layer.lora_kernel_b))
            rule = "An adapter of PEFT has two matrices for a layer."
            check(low.ndim == high.ndim == 2, rule, layer=layer.path, shapes=(low.shape, high.shape))
            rows = slice(row, row + layer.lora_rank)
            joined_low[rows] = low
            joined_high[column : column + width, rows] = high * (layer.lora_alpha / layer.lora_rank / scale)
            row += layer.lora_rank
        column += width
    return joined_low, joined_high, rank, scale


def _shortest(adapted, modules):
    """Returns names of modules as `target_modules`: their last parts, where those name no other module."""
    last = {name.rpartition(".")[2] for name in adapted}
    others = {name for name in modules if name.rpartition(".")[2] in last} - adapted.keys()
    return sorted(adapted if others else last)


def _task(model, config):
    """Returns PEFT's `task_type` of a model, or None for another one."""
    if isinstance(model, LanguageModel):
        return "CAUSAL_LM"
    if not isinstance(model, EncoderModel):
        return "SEQ_2_SEQ_LM" if config.get("is_encoder_decoder") else None
    names = [name for each in config.get("architectures", ()) for name in TASKS if each.endswith(name)]
    return TASKS[names[0]] if names else "FEATURE_EXTRACTION"
