"""Low-rank adapters (Hu et al., 2021, "LoRA"): a model that is frozen but for them, and its exact checkpoints."""

import contextlib
import itertools
import math
import os
import zipfile

import keras
import numpy as np

from keras_transformer.checks import (
    check,
    check_finite_weights,
    check_positive,
    check_range,
    check_share,
    printable,
)
from keras_transformer.keras_internals import sublayers
from keras_transformer.layers import Projection
from keras_transformer.models.base import ADAPTED
from keras_transformer.untrusted import BAD_ZIP, open_arrays, open_regular, read_array, read_json_entry

# A checkpoint of a model with adapters holds this file in addition to Keras's own.
STATE = "adapters.npz"
DENSE = (keras.layers.Dense, keras.layers.EinsumDense)
# What the file says of each dense layer; the rank is 0 where it has no adapter.
LAYER = np.dtype([("rank", "i8"), ("alpha", "f8"), ("dropout", "f8"), ("rank_stabilized", "?")])


def add_adapters(model, rank, targets=None, alpha=None, *, dropout=0.0, rank_stabilized=False):
    """Freezes all weights of a model, and gives its dense layers low-rank adapters by Keras's `enable_lora`.

    Hu et al., 2021, "LoRA: Low-Rank Adaptation of Large Language Models", section 4.1. Compile the model after this
    call. `save` adds the adapters to the kernels. To resume, save with `Checkpoint` and load with `load_checkpoint`.

    Args:
        model: A built `keras.Model`, of this library or not.
        rank: The rank of the adapters, an int.
        targets: Which dense layers get an adapter, a list; all when None. A str is the end of a layer's path, such as
            "query" or "feed_forward/inner"; a layer is itself.
        alpha: The product of a layer's two matrices counts `alpha / rank` times; `rank` when None.
        dropout: Share of the adapters' inputs dropped in training, for dense layers of this library: those of its
            attention and its feed-forward networks. It is rounded to a multiple of 1/256, and never to 0: see
            `layers.Dropout`.
        rank_stabilized: Whether the product counts `alpha / rank ** 0.5` times (Kalajdzievski, 2023, "A Rank
            Stabilization Scaling Factor"), as `use_rslora` of PEFT.

    Raises:
        ValueError: If `rank` or `alpha` is not positive, `dropout` is not in [0, 1), the model has no weights yet or
            has adapters, a target is no dense layer of the model, or an adapter cannot drop its inputs.

    >>> model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3), keras.layers.Dense(3, name="last")])
    >>> add_adapters(model, 2, targets=["last"])
    >>> [tuple(weight.shape) for weight in model.trainable_weights]
    [(3, 2), (2, 3)]
    """
    check_positive(rank=rank)
    check_share(dropout=dropout)
    if alpha is not None:
        check_range(0, above=True, alpha=alpha)
    rule = "The model must be built: call it once, or pass its input shape to `build`."
    check(model.built, rule, model=model.name)
    layers = _dense(model)
    rule = (
        "The model has adapters already, and can have one set. Write them with `to_huggingface(..., adapter=)`, or add "
        "them to the kernels with `to_huggingface`, and read the model again."
    )
    check(not any(layer.lora_enabled for layer in layers), rule, rank=adapter_rank(model))
    for target in () if targets is None else targets:
        names = sorted({layer.name for layer in layers})
        rule = f"Each of `targets` must be the end of a dense layer's path, or the layer. Their names are {names}."
        check(any(_is_target(layer, target) for layer in layers), rule, target=target)
    adapted = [
        layer for layer in layers if targets is None or any(_is_target(layer, target) for target in targets)
    ]
    check(adapted, "`targets` must name a dense layer at least, or no weight is trained.", targets=targets)
    others = [layer.path for layer in adapted if not isinstance(layer, Projection)]
    rule = "`dropout` is for dense layers of this library: leave the others out of `targets`."
    check(not (dropout and others), rule, others=others[:5])
    for weight in model.weights:
        weight.trainable = False
    for layer in adapted:
        factor = (rank if alpha is None else alpha) * (rank**0.5 if rank_stabilized else 1)
        _enable(layer, rank, factor, dropout, rank_stabilized)


def _enable(layer, rank, alpha, dropout, rank_stabilized):
    """Gives a layer an adapter; `alpha` counts as in Keras, whether it is rank-stabilized or not."""
    layer.enable_lora(rank, lora_alpha=alpha, **({"lora_dropout": dropout} if dropout else {}))
    # Only a file of PEFT says it.
    layer.lora_rank_stabilized = bool(rank_stabilized)


def _is_target(layer, target):
    """Returns whether a layer is a target: itself, or the end of its path."""
    return layer is target or (isinstance(target, str) and f"/{layer.path}".endswith(f"/{target}"))


@contextlib.contextmanager
def without_adapters(model):
    """Takes the adapters off a model inside a `with`: its kernels are then those that it had before training."""
    adapted = [layer for layer in _dense(model) if layer.lora_enabled]
    for layer in adapted:
        layer.lora_enabled = False
    try:
        yield adapted
    finally:
        for layer in adapted:
            layer.lora_enabled = True


def adapter_rank(model):
    """Returns the rank of a model's adapters, an int; 0 without adapters."""
    return max((layer.lora_rank or 0 for layer in _dense(model)), default=0)


def copy_merged(model, copy):
    """Gives a copy without adapters the weights of a model, with the adapters added to the kernels.

    Args:
        model: A built model.
        copy: A built model of the same configuration.
    """
    adapters = {id(each) for layer in _dense(model) for each in _adapter(layer)}
    copy.set_weights([weight.numpy() for weight in model.weights if id(weight) not in adapters])
    for own, other in zip(_dense(model), _dense(copy), strict=True):
        if own.lora_enabled:
            other.kernel.assign(own.kernel)


def write_state(model, path):
    """Adds the adapters, the kernels without them and the optimizer to the file of a model.

    Keras saves the sum of kernels and adapters, from which training cannot resume exactly.

    Args:
        model: A compiled model with adapters.
        path: Path of its `.keras` file.
    """
    rows = [[getattr(layer, f"lora_{name}", 0) or 0 for name in LAYER.names] for layer in _dense(model)]
    columns = {
        "layers": np.array(list(map(tuple, rows)), LAYER),
        "trainable": np.array([weight.trainable for weight in model.weights], bool),
    }
    # One value is in memory at a time, where `np.savez` has all of them.
    variables = ((str(i), np.asarray(variable)) for i, variable in enumerate(_state(model)))
    with (
        zipfile.ZipFile(path, "a") as archive,
        archive.open(STATE, "w", force_zip64=True) as file,
        zipfile.ZipFile(file, "w") as arrays,
    ):
        for name, value in itertools.chain(columns.items(), variables):
            with arrays.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, value, allow_pickle=False)


def holds_state(path):
    """Returns whether a file is that of a model with adapters, which `write_state` changed."""
    with open_regular(path) as file, contextlib.suppress(*BAD_ZIP), zipfile.ZipFile(file) as archive:
        return STATE in archive.namelist()
    return False


def restore_state(model, path):
    """Gives a loaded model the adapters and the optimizer that `write_state` saved.

    Args:
        model: The model of the file, not compiled.
        path: Path of the `.keras` file.
    """
    config = read_json_entry(path, "config.json").get("compile_config")
    check(isinstance(config, dict), f"{path} must say how the model was compiled.", compile_config=config)
    with open_arrays(path, STATE) as values:
        layers = _dense(model)
        saved = read_array(values, "layers", path)
        fits = saved.dtype == LAYER and saved.shape == (len(layers),)
        # The adapters of rank 1 have at least this many numbers of four bytes: a kernel (k, n) has k + n.
        widths = np.array([2 * math.isqrt(math.prod(layer.kernel.shape)) for layer in layers], float)
        most = os.path.getsize(path) // 4
        fits = fits and np.all(saved["rank"] >= 0) and np.sum(saved["rank"] * widths) <= most
        fits = fits and np.all(np.isfinite(saved["alpha"])) and np.all(saved["dropout"] < 1)
        own = np.array([isinstance(layer, Projection) for layer in layers])
        fits = fits and np.all((saved["dropout"] == 0) | (own & (saved["dropout"] > 0)))
        rule = f"{path} must hold a rank and an alpha for each dense layer, with adapters of at most {most} numbers."
        check(fits, rule, layers=saved.tolist())
        for layer, (rank, alpha, dropout, is_stabilized) in zip(layers, saved.tolist(), strict=True):
            if layer.lora_enabled:
                # The configuration of a functional or sequential model says so of each layer; Keras leaves alpha out.
                own = layer.lora_rank, getattr(layer, "lora_dropout", 0.0)
                rule = f"{path} must have one rank and one dropout for {layer.path}."
                check(own == (rank, dropout), rule, rank=rank, dropout=dropout)
                layer.lora_alpha, layer.lora_rank_stabilized = alpha, is_stabilized
            elif rank:
                _enable(layer, rank, alpha, dropout, is_stabilized)
        trainable = read_array(values, "trainable", path)
        rule = f"{path} must say of each weight whether it is trained."
        fits = trainable.dtype == bool and trainable.shape == (len(model.weights),)
        check(fits, rule, trainable=trainable.tolist())
        for weight, is_trained in zip(model.weights, trainable.tolist(), strict=True):
            weight.trainable = is_trained
        config.pop(ADAPTED, None)
        try:
            model.compile_from_config(config)
        except Exception as error:
            # Keras raises errors of many classes.
            raise ValueError(
                f"{path} must say how the model was compiled: {printable(str(error), 500)}"
            ) from error
        assign_stored(_state(model), values, path)
    check_finite_weights(model, path)


def assign_stored(variables, values, path):
    """Gives variables the values of an archive of NumPy, where each has its place as its name."""
    for i, variable in enumerate(variables):
        # An archive reads a value each time it is asked for it.
        value = read_array(values, str(i), path)
        rule = f"{path} must hold the values of {variable.path}, of shape {tuple(variable.shape)}."
        check(value.shape == tuple(variable.shape), rule, shape=value.shape)
        variable.assign(value)


def _state(model):
    return [*model.variables, *model.optimizer.variables]


def _dense(model):
    return [layer for layer in sublayers(model) if isinstance(layer, DENSE)]


def _adapter(layer):
    return (layer.lora_kernel_a, layer.lora_kernel_b) if layer.lora_enabled else ()
