"""Tunes the model of a Hugging Face folder on chats or on a table of labels, from the beginning or where it stopped."""

import contextlib
import dataclasses
import logging
import math
import os
import shutil
import tempfile
from pathlib import Path

import keras
import numpy as np

from keras_transformer.checks import check, warn
from keras_transformer.files import holds_others, locked, remove_temporaries, replaced, write_json
from keras_transformer.huggingface import to_huggingface
from keras_transformer.huggingface.adapter_writer import targets_of
from keras_transformer.huggingface.adapters import TOKENIZER_FILE
from keras_transformer.huggingface.checkpoint import Checkpoint as HuggingFaceFolder
from keras_transformer.huggingface.sentence_embeddings import module_names
from keras_transformer.losses import InBatchNegatives
from keras_transformer.metrics import MatchAccuracy
from keras_transformer.runs.folder import says_how_to_resume
from keras_transformer.runs.model import COMPILED, check_backend, check_compiled
from keras_transformer.runs.results import HISTORY, read_history, write_history
from keras_transformer.runs.tuning_recipe import TARGETS
from keras_transformer.runs.tuning_tasks import task_of
from keras_transformer.schedules import CosineSchedule, LinearSchedule
from keras_transformer.training import (
    AdamW,
    Checkpoint,
    Progress,
    SavedState,
    StopOnNaN,
    Termination,
    add_adapters,
    checkpoints,
    load_checkpoint,
)
from keras_transformer.untrusted import read_json, sha256_of

log = logging.getLogger(__name__)

DESCRIPTION, BEST, MODEL = "tuning.json", "best.keras", "model"
# Fewer updates than these are warned of.
FEW_UPDATES = 10
# Suffixes of the files of a checkpoint that decide ids: those of its configuration and its tokenizer.
SMALL = (".json", ".txt", ".model", ".spm", ".jinja")
# The classes that a checkpoint may name as its optimizer, loss and metrics.
KNOWN = (
    *COMPILED,
    InBatchNegatives,
    MatchAccuracy,
    keras.losses.SparseCategoricalCrossentropy,
    keras.metrics.SparseCategoricalAccuracy,
)


def tune(recipe, folder, data, output, val_data=None, say=print):
    """Tunes the model of a Hugging Face folder, or resumes its tuning, and writes it as such a folder.

    A language model learns the answers of chats, which `read_chats` reads. An encoder learns the labels of a table,
    which `read_table` reads, or of words, which `read_conll` reads, with a new head. An embedder of
    sentence-transformers learns the matches of a table. The tuned model is that of the best epoch: of the lowest
    validation loss, or of the highest accuracy of labels. Where words have the label "O", it is the epoch of the
    highest F1 of entities. Of other labels with `class_weights`, it is that of the highest mean F1 of the classes.

    A tuning may be stopped at any step. The same call resumes it, and it ends with the weights of a tuning that was not
    stopped, bit for bit on one machine. On SIGTERM it saves its state, within an epoch too.

    Example:
        recipe = TuningRecipe(lora=8, epochs=2)
        path = tune(recipe, "path/to/chat_model", "chats.jsonl", "RUN")

    Args:
        recipe: A `TuningRecipe`. To resume, it must be the recipe of the tuning; `changes` says which fields may
            differ.
        folder: A Hugging Face folder, a path. Nothing is downloaded.
        data: The file of chats (.jsonl), of texts and labels or matches (.csv, .tsv), or of words and labels (CoNLL), a
            path.
        output: The folder of the tuning, a path: a new one, an empty one, or one that an earlier call began. It gets
            `history.csv`, checkpoints and, at the end, the folder `model`.
        val_data: A file to validate with after each epoch; None to hold out a share of the rows.
        say: A function that is called with each line of the report, a str.

    Returns:
        The path of the folder `model`, a `Path`: a model for transformers and `convert`, or an adapter.

    Raises:
        ValueError: If Keras's backend is not TensorFlow, a file cannot be read, the model is of another kind, or
            `output` holds other files, another tuning, or a tuning that another process works at.
        Terminated: If SIGTERM came. The same call resumes the tuning.
        Diverged: If the loss or a weight is NaN or infinite. The checkpoints before it are whole.
    """
    check_backend("tuning")
    folder, output = Path(folder), Path(output)
    # Whatever can refuse wrong files runs before the first file is written.
    task = task_of(folder, recipe, data)
    rows = task.read(data)
    if val_data is None:
        try:
            rows, held_out = task.split(rows, recipe.hold_out, recipe.seed)
        except ValueError as error:
            raise ValueError(
                f"{data} has too few different rows to hold some out: pass `val_data`. {error}"
            ) from None
    else:
        held_out = task.read(val_data)
    description = {
        "recipe": dataclasses.asdict(recipe),
        "folder": str(folder.absolute()),
        "files": {path.name: sha256_of(path) for path in sorted(folder.iterdir()) if path.suffix in SMALL},
        "data": sha256_of(data),
        "val_data": None if val_data is None else sha256_of(val_data),
    }
    _check_folder(output, recipe, description)
    with locked(output):
        _check_folder(output, recipe, description)
        remove_temporaries(output)
        if (output / MODEL).is_dir():
            say(f"{output}: nothing to do, the tuned model is there.")
        else:
            model, measures = _trained(recipe, task, rows, held_out, output, description, say)
            _finish(recipe, task, model, measures, held_out, output, say)
        return output / MODEL


def _check_folder(output, recipe, description):
    """Raises `ValueError` unless a tuning of this description can begin or resume in a folder."""
    path = output / DESCRIPTION
    if not path.exists():
        rule = "`output` must be new, empty, or the folder of a tuning."
        check(not holds_others(output), rule, output=str(output))
        return
    before = read_json(path)
    changed = recipe.changes(before.get("recipe") if isinstance(before.get("recipe"), dict) else {})
    changed += [
        f"{name}: another one"
        for name in ("folder", "files", "data", "val_data")
        if before.get(name) != description[name]
    ]
    rule = f"{output} holds another tuning. Use its recipe and its files, or another folder."
    check(not changed, rule, changed="; ".join(changed))


def _measures(output, task, epochs):
    """Reads the measures of the epochs that are done, a list of dicts from names to numbers.

    Raises:
        ValueError: If an epoch or a measure is missing, or none.
    """
    rows = read_history(output)[:epochs]
    try:
        history = [
            {name: int(value) if name == "epoch" else float(value) for name, value in row.items()}
            for row in rows
        ]
        for row in history:
            task.quality(row)
        fits = [row["epoch"] for row in history] == [*range(epochs)]
    except (KeyError, ValueError):
        fits = False
    rule = f"{output / HISTORY} must have the measures of each of the {epochs} epochs that are done."
    check(fits, rule, rows=len(rows))
    return history


def _trained(recipe, task, rows, held_out, output, description, say):
    """Trains, and returns the model of the best epoch and its measures on the rows that were held out, a dict."""
    resumed = bool(checkpoints(output))
    with Termination() as termination:
        while True:
            saved = next(iter(checkpoints(output)), SavedState(None))
            history = _measures(output, task, saved.epochs)
            # The process may have ended between a checkpoint and this.
            _keep_best(output, task, history)
            if _is_finished(recipe, task, history):
                best = history[_best_epoch(task, history)]
                measured = {
                    name.removeprefix("val_"): value for name, value in best.items() if "val_" in name
                }
                return _loaded(output / BEST), measured
            keras.utils.set_random_seed(recipe.seed)
            if saved.path is None:
                model = _begun(recipe, task, rows)
            else:
                model = _loaded(saved.path)
                if resumed:
                    say(f"{output}: {saved} done, going on.")
                resumed = False
            batches = task.batches(model, rows, weighted=recipe.class_weights)
            val_batches = task.batches(model, held_out)
            validation = val_batches.dataset(epochs=1).cache()
            if saved.path is None:
                _compile(recipe, task, model, batches.steps)
                write_json(output / DESCRIPTION, description)
                _report(recipe, model, batches.steps, len(rows), len(held_out), say)
                measured = model.evaluate(validation, verbose=0, return_dict=True)
                _say_measures("before", {**measured, **task.measures(model, val_batches)}, say)
            elif saved.steps:
                x, y = next(iter(batches.dataset(epochs=1)))[:2]
                # Keras creates the metrics with the first batch.
                model.compute_metrics(x, y, model(x, training=False))
            progress = Progress(
                batches.steps, batches.tokens, first_step=saved.steps, epochs=recipe.epochs, say=say
            )
            callbacks = [
                StopOnNaN(first_step=saved.steps),
                _History(output, recipe, task, history, val_batches),
                Checkpoint(output, every=recipe.checkpoint_steps, resumed=saved, termination=termination),
                keras.callbacks.LambdaCallback(
                    on_epoch_end=lambda epoch, logs, history=history: _keep_best(output, task, history)
                ),
                progress,
            ]
            with contextlib.closing(progress), says_how_to_resume(output, "tuning", say):
                model.fit(
                    batches.dataset(first_epoch=saved.epochs, first_step=saved.steps),
                    steps_per_epoch=batches.steps - saved.steps,
                    # The rest of an epoch is a call of its own: it has fewer steps.
                    epochs=saved.epochs + 1 if saved.steps else recipe.epochs,
                    initial_epoch=saved.epochs,
                    validation_data=validation,
                    callbacks=callbacks,
                    shuffle=False,
                    verbose=0,
                )


def _begun(recipe, task, rows):
    """Reads the model that is tuned, and gives it its adapters."""
    options = {"precision": "int8"} if recipe.precision == "int8" else {"dtype": recipe.precision}
    model = task.make_model(rows, **options)
    if recipe.lora is not None:
        family = HuggingFaceFolder(task.folder).family
        names = None if recipe.targets == "all" else (recipe.targets or TARGETS).split(",")
        targets = names if names is None else targets_of(task.inner(model), family, names)
        options = {"dropout": recipe.lora_dropout, "rank_stabilized": recipe.rank_stabilized}
        add_adapters(model, recipe.lora, targets, recipe.alpha, **options)
        for layer in task.new_layers(model):
            for weight in layer.weights:
                weight.trainable = True
    if recipe.adapter:
        # What cannot be written is refused before the training.
        with tempfile.TemporaryDirectory() as folder:
            to_huggingface(task.inner(model), Path(folder) / MODEL, adapter=task.folder)
    return model


def _loaded(path):
    """Loads the model of a checkpoint, with its optimizer."""
    check_compiled(path, KNOWN)
    return load_checkpoint(path)


def _compile(recipe, task, model, steps):
    """Compiles a model for its tuning."""
    rate = recipe.learning_rate or (task.learning_rate if recipe.lora is None else task.lora_rate)
    # Keras's optimizers give a schedule the number of batches, also where several batches make an update.
    total = recipe.epochs * steps
    rule = "`accumulation` must be at most the number of batches of all epochs, or no weight is trained."
    check(recipe.accumulation <= total, rule, accumulation=recipe.accumulation, batches=total)
    schedule = LinearSchedule if recipe.schedule == "linear" else CosineSchedule
    loss, metrics = task.loss(model)
    model.compile(
        AdamW(
            # A schedule ends at 0: that is the update after the last one.
            schedule(rate, total + recipe.accumulation, min(round(recipe.warmup * total), total)),
            weight_decay=recipe.weight_decay,
            global_clipnorm=recipe.clip_norm,
            gradient_accumulation_steps=recipe.accumulation if recipe.accumulation > 1 else None,
        ),
        loss,
        metrics=metrics,
    )


def _report(recipe, model, steps, rows, held_out, say):
    trained = sum(int(np.prod(weight.shape)) for weight in model.trainable_weights)
    size = sum(weight.numpy().nbytes for weight in model.weights) / 1e6
    updates = recipe.epochs * steps // recipe.accumulation
    say(
        f"{model.count_params():,} parameters of {size:,.1f} MB, {trained:,} of them trained; {rows:,} rows to "
        f"train on, {updates} updates in batches of {recipe.batch_size}; {held_out:,} rows to validate with"
    )
    if updates < FEW_UPDATES:
        warn(
            f"{updates} updates may be too few to learn from: take more `epochs`, or a smaller `batch_size`."
        )


def _say_measures(name, measures, say):
    say(f"{name}: " + "  ".join(f"{key} {float(value):.4g}" for key, value in measures.items()))


def _best_epoch(task, history):
    """Returns the number of the best epoch of a history, from 0."""
    # NaN is worse than any number.
    qualities = [
        tuple(-math.inf if math.isnan(value) else value for value in task.quality(row)) for row in history
    ]
    return qualities.index(max(qualities))


def _is_finished(recipe, task, history):
    """Returns whether all epochs are done, or the last `patience` epochs were not better."""
    if not history or len(history) >= recipe.epochs:
        return bool(history)
    return recipe.patience is not None and len(history) - 1 - _best_epoch(task, history) >= recipe.patience


class _History(keras.callbacks.Callback):
    """Writes the measurements of each epoch, and stops the tuning when it is finished."""

    def __init__(self, output, recipe, task, history, val_batches):
        super().__init__()
        self.output, self.recipe, self.task, self.history = output, recipe, task, history
        self.val_batches = val_batches

    def on_epoch_end(self, epoch, logs):
        measures = self.task.measures(self.model, self.val_batches)
        # The callbacks after this one report them too.
        logs.update({f"val_{name}": value for name, value in measures.items()})
        self.history.append({"epoch": epoch, **logs})
        write_history(self.output, self.history)
        self.model.stop_training = _is_finished(self.recipe, self.task, self.history)


def _keep_best(output, task, history):
    """Keeps the checkpoint of the best epoch under a name of its own."""
    if not history:
        return
    path = output / f"checkpoint-{_best_epoch(task, history) + 1:04d}.keras"
    # An earlier epoch has the name already.
    if path.exists():
        with replaced(output / BEST) as temporary:
            try:
                os.link(path, temporary)
            except OSError:
                # The file system has no links.
                shutil.copyfile(path, temporary)


def _finish(recipe, task, model, measures, held_out, output, say):
    """Reports what the tuned model does, and writes it."""
    _say_measures("after", measures, say)
    with replaced(output / MODEL) as temporary:
        to_huggingface(
            task.inner(model), temporary, adapter=task.folder.absolute() if recipe.adapter else None
        )
        # sentence-transformers looks for modules.json beside an adapter.
        modules = module_names(task.folder) if recipe.adapter else ()
        for path in task.folder.iterdir():
            is_wanted = TOKENIZER_FILE.fullmatch(path.name) or path.name in modules
            if is_wanted and not (temporary / path.name).exists():
                (shutil.copytree if path.is_dir() else shutil.copyfile)(path, temporary / path.name)
    for line in task.scores(model, held_out):
        say(f"  {line}")
    for line in task.samples(model, held_out[: recipe.samples]) if recipe.samples else ():
        say(f"  {line}")
    log.info("tuned", extra={"folder": str(output), **measures})
