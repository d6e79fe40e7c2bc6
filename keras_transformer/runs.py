"""A training run: a folder with everything to go on training, to translate and to export."""

import contextlib
import dataclasses
import hashlib
import platform

import keras
import tensorflow as tf

from keras_transformer.backend import compiles
from keras_transformer.checks import check_count
from keras_transformer.data import Batches
from keras_transformer.files import locked, remove_temporaries
from keras_transformer.recipe import Recipe
from keras_transformer.results import Results, ValidateAverage, in_float32, read_history
from keras_transformer.run_folder import RunFolder
from keras_transformer.serving import Translator
from keras_transformer.serving.loading import load_model
from keras_transformer.termination import Terminated, Termination
from keras_transformer.text import TOKENIZERS
from keras_transformer.training import (
    Checkpoint,
    Diverged,
    Progress,
    SavedState,
    StopOnNaN,
    TensorBoard,
    average_weights,
)

__all__ = ["Diverged", "Recipe", "Terminated", "average", "read_history", "train"]

KEPT = 2  # checkpoints of whole epochs: should the newest be damaged, there is one before it


def train(recipe, pairs, folder, val_pairs=None, say=print):
    """Trains a model, or goes on training one, and keeps all of it in a folder.

    After each epoch the folder holds a checkpoint to resume from and a translator that `Translator.load` reads:
    the model of the best validation perplexity, or without validation pairs the newest; at the end, where the recipe
    says so, the mean of the last epochs. A run that was stopped at any step ends with the weights of a run that was
    not, bit for bit on one machine. On SIGTERM it saves where it is, within an epoch too.

    Args:
        recipe: A `Recipe`. To resume it must be the run's own but for what `Recipe.changes` leaves free.
        pairs: List of (source, target) str.
        folder: The run's folder: new, empty, or one that an earlier call began.
        val_pairs: Pairs to validate with after each epoch, or None; the recipe's `patience` needs them.
        say: Called with each line of news.

    Returns:
        The `Translator` that the folder holds.

    Raises:
        ValueError: If `patience` has no validation pairs, or the folder holds something else, or a run of another
            recipe or other pairs, or no checkpoint of it can be read, or another process trains in it.
        Terminated: If SIGTERM came; the same call goes on.
        Diverged: If the loss or a weight is no number; the checkpoints before it are whole.
    """
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            "A run needs Keras's TensorFlow backend; `model.fit` trains on others. "
            f"Received: KERAS_BACKEND={keras.backend.backend()}."
        )
    if recipe.patience is not None and not val_pairs:
        raise ValueError(
            f"`patience` needs validation pairs. Received: patience={recipe.patience}, val_pairs={val_pairs}."
        )
    folder = RunFolder(folder)
    description = _description(recipe, pairs, val_pairs)
    folder.check(description, recipe)  # before anything is written: another's folder stays as it is
    with locked(folder.path):
        folder.check(description, recipe)  # it may have become another run's
        remove_temporaries(folder.path)
        folder.describe(description)  # what may change between two calls
        _finish(recipe, pairs, val_pairs, folder, description, say)
        return Translator.load(folder.path)


def _finish(recipe, pairs, val_pairs, folder, description, say):
    """Does what a run lacks: its epochs, and their mean."""
    if folder.is_finished(recipe) and not folder.lacks_average(recipe):
        say(f"{folder}: nothing to do, {folder.epochs_done} epochs are done.")
    with Termination() as termination:
        while not folder.is_finished(recipe):
            try:
                _fit(recipe, pairs, val_pairs, folder, description, termination, say)
            except KeyboardInterrupt:
                say(f"{folder}: {folder.epochs_done} epochs are saved; the same command goes on.")
                raise
    if folder.lacks_average(recipe):  # also where an earlier call ended between its last epoch and the mean
        last = min(recipe.average_last, len(folder.whole_epochs()))
        if last < recipe.average_last:
            say(
                f"warning: `average_last` is {recipe.average_last}, and {folder} keeps {last} epochs: their mean."
            )
        average(folder.path, last, say)


def average(folder, last=None, say=print):
    """Makes the mean of the newest checkpoints the model of a run's translator; the checkpoints stay as they are.

    "Attention Is All You Need", section 6.1.

    Args:
        folder: The run's folder.
        last: How many checkpoints, of whole epochs; all that are kept when None. A run keeps two, or as many as its
            recipe's `average_last`.
        say: Called with each line of news.

    Raises:
        ValueError: If there are fewer, or none.
    """
    folder = RunFolder(folder)
    whole = folder.whole_epochs()
    if not whole:
        raise ValueError(
            f"`folder` must be a run's, with checkpoints of whole epochs. Received: folder={folder}."
        )
    last = len(whole) if last is None else last
    check_count(1, last=last)
    whole = whole[:last]
    if len(whole) < last:
        raise ValueError(
            f"`last` must be at most the number of checkpoints that {folder} keeps, {len(whole)} (more with "
            f"`average_last`). Received: last={last}."
        )
    translator = Translator.load(folder.path)
    model = average_weights([saved.path for saved in reversed(whole)], load_model)
    averaged = [saved.epochs for saved in reversed(whole)]
    _serving(translator, model).write_into(folder.path, averaged_epochs=averaged)
    say(f"{folder}: the translator has the mean weights of the last {last} epochs.")


def _serving(translator, model):
    """A translator's like with another model."""
    return Translator(
        in_float32(model),
        translator.source_tokenizer,
        translator.target_tokenizer,
        max_source_length=translator.max_source_length,
    )


def _initial(recipe):
    """The translator that the recipe begins with, or None."""
    if recipe.init_from is None:
        return None
    initial = Translator.load(recipe.init_from)
    separate = initial.source_tokenizer is not initial.target_tokenizer
    of_bytes = isinstance(initial.source_tokenizer, TOKENIZERS["ByteTokenizer"])
    if (separate, of_bytes) != (recipe.separate_vocabularies, recipe.tokenizer == "byte"):
        raise ValueError(
            f"`tokenizer` and `separate_vocabularies` must be those of `init_from`. Received: "
            f"tokenizer={recipe.tokenizer!r}, separate_vocabularies={recipe.separate_vocabularies}; {recipe.init_from} "
            f"has {'two vocabularies' if separate else 'one vocabulary'} of {'bytes' if of_bytes else 'subwords'}."
        )
    return initial


def _fit(recipe, pairs, val_pairs, folder, description, termination, say):
    """Trains from where the folder is to the last epoch, or to the end of an epoch that was left in the middle."""
    keras.utils.set_random_seed(recipe.seed)  # each layer draws a seed of its own from this one
    if folder.checkpoints():
        model, saved = folder.restored(say)
        middle = f" and {saved.steps} steps of the next" if saved.steps else ""
        say(f"{folder}: {saved.epochs} epochs{middle} done, going on.")
        tokenizers = folder.tokenizers(recipe)
    else:
        model, saved = None, SavedState(None)
        initial = _initial(recipe)
        tokenizers = recipe.tokenizers(pairs) if initial is None else initial.tokenizers
    limits = {
        "batch_tokens": recipe.batch_tokens,
        "max_length": recipe.max_length,
        "too_long": recipe.too_long,
    }
    batches = Batches(pairs, *tokenizers, seed=recipe.seed, sampling=recipe.subword_sampling, **limits)
    val_batches = Batches(val_pairs, *tokenizers, **limits) if val_pairs else None
    if model is None:
        sizes = [tokenizer.vocab_size for tokenizer in tokenizers]
        model = recipe.model(*sizes, batches.steps, initial and initial.model)
        # Only now: a mistake in the recipe must not take the folder.
        folder.begin(recipe, description, tokenizers)
        say(
            f"{model.count_params():,} parameters, {tokenizers[0].vocab_size} source and "
            f"{tokenizers[1].vocab_size} target ids; {batches.kept:,} pairs, {batches.steps} steps an epoch, "
            f"{batches.padding:.0%} padding; {recipe.precision}, XLA {'on' if compiles(recipe.xla) else 'off'}"
        )
        updates = recipe.epochs * batches.steps // recipe.accumulation
        if updates <= recipe.warmup_steps:
            say(
                f"warning: the training ends after {updates} updates, within the warm-up of {recipe.warmup_steps}: it "
                f"may learn little. Give it a warm-up of some {max(1, updates // 4)} with a highest learning rate of "
                "some 0.002, more epochs, or smaller batches."
            )
    max_source_length = max(256, recipe.max_length)
    progress = Progress(batches.steps, batches.tokens, first_step=saved.steps, epochs=recipe.epochs)
    with contextlib.closing(progress):
        model.fit(
            batches.dataset(first_epoch=saved.epochs, first_step=saved.steps),
            steps_per_epoch=batches.steps - saved.steps,
            epochs=saved.epochs + 1 if saved.steps else recipe.epochs,
            initial_epoch=saved.epochs,
            validation_data=val_batches.dataset(epochs=1).cache() if val_batches else None,
            callbacks=[
                StopOnNaN(batches.texts, first_step=saved.steps),
                *([ValidateAverage()] if recipe.ema is not None else []),
                # In this order: a checkpoint says that all of its epoch is there.
                Results(
                    folder.path,
                    saved.epochs,
                    lambda model: Translator(model, *tokenizers, max_source_length=max_source_length),
                ),
                Checkpoint(
                    folder.path,
                    keep=max(KEPT, recipe.average_last),
                    every=recipe.checkpoint_steps,
                    resumed=saved,
                    termination=termination,
                ),
                TensorBoard(
                    folder.path / "tensorboard",
                    translator=Translator(model, *tokenizers, max_source_length=max_source_length),
                    val_pairs=val_pairs,
                ),
                progress,
                _Patience(folder, recipe),
            ],
            shuffle=False,
            verbose=0,
        )


def _description(recipe, pairs, val_pairs):
    """What `run.json` says: recipe, fingerprints of the pairs, versions."""

    def fingerprint(pairs):
        digest = hashlib.sha256(repr(pairs).encode("utf-8", "surrogatepass")).hexdigest()
        return {"number": len(pairs), "sha256": digest}

    return {
        "recipe": dataclasses.asdict(recipe),
        "pairs": fingerprint(pairs),
        "val_pairs": fingerprint(val_pairs) if val_pairs else None,
        "versions": {
            "python": platform.python_version(),
            "keras": keras.__version__,
            "tensorflow": tf.__version__,
        },
    }


class _Patience(keras.callbacks.Callback):
    """Ends the training when it is finished before its last epoch."""

    def __init__(self, folder, recipe):
        super().__init__()
        self.folder = folder
        self.recipe = recipe

    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = self.folder.is_finished(self.recipe)
