"""The compiled model of a recipe."""

import keras

from keras_transformer.checks import check
from keras_transformer.execution import native
from keras_transformer.losses import MaskedCrossentropy
from keras_transformer.metrics import MaskedAccuracy, Perplexity
from keras_transformer.models import Transformer
from keras_transformer.models.transformer import PRESETS
from keras_transformer.runs.initial import continued
from keras_transformer.runs.recipe import MODEL
from keras_transformer.runs.tokenizers import ids_and_sizes
from keras_transformer.schedules import CosineSchedule, InverseSquareRootSchedule, LinearSchedule
from keras_transformer.training import Adam, AdamW, Muon
from keras_transformer.training.adapters import add_adapters
from keras_transformer.untrusted import read_json_entry

# For muon: the learning rate of the weights that are not kernels, as a share of that of the kernels; and the number of
# Newton-Schulz steps, one less than Keras's.
MUON_ADAM_SHARE = 0.5
MUON_STEPS = 4
# The paper's learning rate for fewer steps of warm-up is not used.
SHORTEST_WARMUP = 1000

# The classes of `make_model`, which a checkpoint may name as its optimizer, loss and metrics. Other classes of Keras
# can be larger than the model: the file sets the size of a confusion matrix.
COMPILED = (
    Adam,
    AdamW,
    Muon,
    CosineSchedule,
    InverseSquareRootSchedule,
    LinearSchedule,
    MaskedCrossentropy,
    MaskedAccuracy,
    Perplexity,
)
COMPILED_KEYS = ("optimizer", "loss", "metrics")


def check_backend(work):
    """Raises `ValueError` unless Keras's backend is TensorFlow.

    Args:
        work: What needs it, such as "run".
    """
    rule = f"A {work} needs Keras's TensorFlow backend. On other backends, train with `model.fit`."
    check(keras.backend.backend() == "tensorflow", rule, KERAS_BACKEND=keras.backend.backend())


def make_model(recipe, tokenizers, steps, initial=None):
    """Makes a compiled model: a new `Transformer`, or a copy of the model that the training goes on with.

    Args:
        recipe: The `Recipe`.
        tokenizers: The source tokenizer and the target tokenizer; one object twice if they share a vocabulary.
        steps: Number of batches in an epoch, an int; the schedule needs it.
        initial: The `EncoderDecoder` of `init_from`, which stays unchanged; or None.

    Returns:
        The `EncoderDecoder`.

    Raises:
        ValueError: If a field has another value than `initial`, or the tokenizers contradict each other.
    """
    if initial is not None:
        options = {**(PRESETS[recipe.preset] if recipe.preset else {}), **recipe.given(*MODEL)}
        model = continued(initial, options, recipe.precision)
        if recipe.lora is not None:
            add_adapters(model, recipe.lora)
    else:
        resolved, (source, target) = recipe.resolved(), tokenizers
        ids, (source_vocab_size, target_vocab_size) = ids_and_sizes(source, target)
        model = Transformer.from_preset(
            resolved.preset,
            source_vocab_size,
            None if source is target else target_vocab_size,
            **resolved.given(*MODEL),
            **ids,
            dtype=resolved.precision,
        )
    model.compile(
        optimizer=_optimizer(recipe, _schedule(recipe, model.d_model, steps)),
        loss=MaskedCrossentropy(recipe.label_smoothing, pad_id=model.pad_id),
        metrics=[MaskedAccuracy(pad_id=model.pad_id), Perplexity(pad_id=model.pad_id)],
        jit_compile=native.compiles(recipe.xla),
        r_drop=recipe.r_drop,
    )
    return model


def check_compiled(path, classes=COMPILED):
    """Raises `ValueError` if a checkpoint names optimizers, losses or metrics of other classes."""
    config = read_json_entry(path, "config.json").get("compile_config")
    check(isinstance(config, dict), f"{path} must say how the model was compiled.", compile_config=config)
    known = [_name_of(each) for each in classes]
    rule = f"The optimizer, the loss and the metrics in {path} must be of the classes {known}."
    for name, value in config.items():
        fits = (
            isinstance(value, (dict, list))
            if name in COMPILED_KEYS
            else not isinstance(value, (dict, list, str))
        )
        check(fits, rule, **{name: value})
    for each in _objects(config):
        name = each.get("registered_name") or f"{each.get('module')}>{each['class_name']}"
        check(name in known, rule, **each)
    steps = config.get("steps_per_execution", 1)
    check(steps == 1, f"`steps_per_execution` in {path} must be 1.", steps_per_execution=steps)


def _name_of(cls):
    """Returns the name of a class in a file: the registered one, or the module and the name of a class of Keras."""
    module = "keras.metrics" if issubclass(cls, keras.metrics.Metric) else "keras.losses"
    name = keras.saving.get_registered_name(cls)
    return name if ">" in name else f"{module}>{name}"


def _objects(value):
    """Yields the described objects in a JSON value."""
    for inner in value.values() if isinstance(value, dict) else value:
        if isinstance(inner, dict) and "class_name" in inner:
            yield inner
        if isinstance(inner, (dict, list)):
            yield from _objects(inner)


def _schedule(recipe, d_model, steps):
    peak = recipe.learning_rate
    if peak is None:
        # "Attention Is All You Need", equation 3.
        peak = (d_model * max(recipe.warmup_steps, SHORTEST_WARMUP)) ** -0.5
    # Keras's optimizers give a schedule the number of batches, also where several batches make an update.
    warmup = recipe.warmup_steps * recipe.accumulation
    if recipe.schedule == "inverse_sqrt":
        return InverseSquareRootSchedule(peak, warmup)
    updates = recipe.updates(steps)
    rule = (
        f"`warmup_steps` must be less than the updates of the training, because the rate of {recipe.schedule!r} falls "
        "after them. Take about a tenth of the updates, or more epochs."
    )
    check(recipe.warmup_steps < updates, rule, warmup_steps=recipe.warmup_steps, updates=updates)
    schedule_class = LinearSchedule if recipe.schedule == "linear" else CosineSchedule
    return schedule_class(peak, updates * recipe.accumulation, warmup)


def _optimizer(recipe, schedule):
    # "Attention Is All You Need", section 5.3.
    betas = {"beta_1": 0.9, "beta_2": 0.98}
    options = {"epsilon": recipe.adam_epsilon, "global_clipnorm": recipe.clip_norm}
    if recipe.accumulation > 1:
        options["gradient_accumulation_steps"] = recipe.accumulation
    if recipe.ema is not None:
        options |= {"use_ema": True, "ema_momentum": recipe.ema}
    if recipe.optimizer == "adam":
        return Adam(schedule, **betas, **options)
    if recipe.optimizer == "adamw":
        return AdamW(schedule, weight_decay=recipe.weight_decay, **betas, **options)
    return Muon(
        schedule,
        weight_decay=recipe.weight_decay,
        adam_weight_decay=None,
        adam_lr_ratio=MUON_ADAM_SHARE,
        ns_steps=MUON_STEPS,
        ns_dtype="bfloat16" if recipe.precision == "mixed_bfloat16" else None,
        **{f"adam_{name}": beta for name, beta in betas.items()},
        **options,
    )
