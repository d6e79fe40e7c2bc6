"""A training run: a folder with everything to go on training, to translate and to export."""

import dataclasses
import hashlib
import json
import platform
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.backend import compiles
from keras_transformer.checks import check_count
from keras_transformer.data import Batches
from keras_transformer.files import LOCK, locked, remove_temporaries, replaced, temporaries
from keras_transformer.recipe import Recipe
from keras_transformer.results import Results, ValidateAverage, in_float32, read_history, val_perplexities
from keras_transformer.serving import Translator
from keras_transformer.serving.loading import load_model
from keras_transformer.serving.translator import DESCRIPTION as TRANSLATOR
from keras_transformer.text import TOKENIZERS
from keras_transformer.training import (
    Checkpoint,
    Diverged,
    Progress,
    SavedState,
    StopOnNaN,
    TensorBoard,
    Terminated,
    Termination,
    average_weights,
    checkpoints,
)

__all__ = ["Diverged", "Recipe", "Terminated", "average", "read_history", "train"]

DESCRIPTION = "run.json"
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
    if recipe.patience is not None and not val_pairs:
        raise ValueError(
            f"`patience` needs validation pairs. Received: patience={recipe.patience}, val_pairs={val_pairs}."
        )
    folder = Path(folder)
    description = _description(recipe, pairs, val_pairs)
    _check(folder, description, recipe)  # before anything is written: another's folder stays as it is
    with locked(folder):
        _check(folder, description, recipe)  # it may have become another run's
        remove_temporaries(folder)
        _finish(recipe, pairs, val_pairs, folder, description, say)
        return Translator.load(folder)


def _finish(recipe, pairs, val_pairs, folder, description, say):
    """Does what a run lacks: its epochs, and their mean."""
    if _finished(folder, recipe) and not _lacks_average(folder, recipe):
        say(f"{folder}: nothing to do, {_epochs_done(folder)} epochs are done.")
    with Termination() as termination:
        while not _finished(folder, recipe):
            _fit(recipe, pairs, val_pairs, folder, description, termination, say)
    if _lacks_average(folder, recipe):  # also where an earlier call ended between its last epoch and the mean
        last = min(recipe.average_last, len(_whole(folder)))
        if last < recipe.average_last:
            say(
                f"warning: `average_last` is {recipe.average_last}, and {folder} keeps {last} epochs: their mean."
            )
        average(folder, last, say)


def average(folder, last, say=print):
    """Makes the mean of the newest checkpoints the model of a run's translator; the checkpoints stay as they are.

    "Attention Is All You Need", section 6.1.

    Args:
        folder: The run's folder.
        last: How many checkpoints, of whole epochs. A run keeps as many as its recipe's `average_last`.
        say: Called with each line of news.

    Raises:
        ValueError: If there are fewer.
    """
    folder = Path(folder)
    check_count(1, last=last)
    whole = _whole(folder)[:last]
    if len(whole) < last:
        raise ValueError(
            f"`last` must be at most the number of checkpoints that {folder} keeps, {len(whole)} (more with "
            f"`average_last`). Received: last={last}."
        )
    translator = Translator.load(folder)
    model = average_weights([saved.path for saved in reversed(whole)], load_model)
    averaged = [saved.epochs for saved in reversed(whole)]
    _serving(translator, model).write_into(folder, averaged_epochs=averaged)
    say(f"{folder}: the translator has the mean weights of the last {last} epochs.")


def _lacks_average(folder, recipe):
    """Whether the recipe wants a mean of the last epochs, and the translator is none that ends with the newest."""
    if recipe.average_last == 1:
        return False
    try:
        averaged = json.loads((folder / TRANSLATOR).read_text(encoding="utf-8")).get("averaged_epochs")
    except (OSError, ValueError, AttributeError):
        averaged = None
    return not averaged or averaged[-1] != _epochs_done(folder)


def _serving(translator, model):
    """A translator's like with another model."""
    return Translator(
        in_float32(model),
        translator.source_tokenizer,
        translator.target_tokenizer,
        max_source_length=translator.max_source_length,
    )


def _whole(folder):
    """The checkpoints of whole epochs, the newest first."""
    return [saved for saved in checkpoints(folder) if not saved.steps]


def _epochs_done(folder):
    return max((saved.epochs for saved in checkpoints(folder)), default=0)


def _finished(folder, recipe):
    """Whether all epochs are done, or none of the last few was the best."""
    done = _epochs_done(folder)
    if done >= recipe.epochs:
        return True
    found = val_perplexities(read_history(folder)[:done])
    return (
        recipe.patience is not None
        and bool(found)
        and len(found) - 1 - int(np.argmin(found)) >= recipe.patience
    )


def _restored(folder, say):
    """The model of the newest checkpoint that can be read, compiled, and its `SavedState`."""
    damage = []
    for saved in checkpoints(folder):
        try:
            model = load_model(saved.path, compile=True)
        except ValueError as error:
            damage.append(str(error))
            say(f"warning: {error} Going back to the checkpoint before it.")
        else:
            # Keras makes the metrics with their first batch; one of an unfinished epoch is to be restored before.
            model.compute_metrics(None, np.zeros((1, 1), "int32"), np.zeros((1, 1, model.target_vocab_size)))
            return model, saved
    raise ValueError(f"No checkpoint of {folder} can be read. {' '.join(damage)}")


def _tokenizer_paths(recipe, folder):
    sides = (
        ("source", "target") if recipe.separate_vocabularies and recipe.tokenizer != "byte" else ("source",)
    )
    return [folder / f"{side}_tokenizer.model" for side in sides]


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
    begun = bool(checkpoints(folder))
    keras.utils.set_random_seed(recipe.seed)  # each layer draws a seed of its own from this one
    if begun:
        model, saved = _restored(folder, say)
        middle = f" and {saved.steps} steps of the next" if saved.steps else ""
        say(f"{folder}: {saved.epochs} epochs{middle} done, going on.")
        kind = TOKENIZERS["ByteTokenizer" if recipe.tokenizer == "byte" else "SentencePieceTokenizer"]
        loaded = [kind.load(path) for path in _tokenizer_paths(recipe, folder)]
        tokenizers = loaded[0], loaded[-1]
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
        with replaced(folder / DESCRIPTION) as temporary:
            temporary.write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
        for path, tokenizer in zip(_tokenizer_paths(recipe, folder), tokenizers, strict=False):
            with replaced(path) as temporary:
                tokenizer.save(temporary)
        say(
            f"{model.count_params():,} parameters, {tokenizers[0].vocab_size} source and "
            f"{tokenizers[1].vocab_size} target ids; {batches.kept:,} pairs, {batches.steps} steps an epoch, "
            f"{batches.padding:.0%} padding; {recipe.precision}, XLA {'on' if compiles(recipe.xla) else 'off'}"
        )
        updates = recipe.epochs * batches.steps // recipe.accumulation
        if updates <= recipe.warmup_steps:
            say(
                f"warning: the training ends after {updates} updates, within the warm-up of {recipe.warmup_steps}: it "
                "may learn little. Less warm-up and a highest learning rate of some 0.002 suit few sentences."
            )
    max_source_length = max(256, recipe.max_length)
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
                folder,
                saved.epochs,
                lambda model: Translator(model, *tokenizers, max_source_length=max_source_length),
            ),
            Checkpoint(
                folder,
                keep=max(KEPT, recipe.average_last),
                every=recipe.checkpoint_steps,
                resumed=saved,
                termination=termination,
            ),
            TensorBoard(
                folder / "tensorboard",
                translator=Translator(model, *tokenizers, max_source_length=max_source_length),
                val_pairs=val_pairs,
            ),
            Progress(batches.steps, batches.tokens, first_step=saved.steps, epochs=recipe.epochs),
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


def _check(folder, description, recipe):
    """Raises `ValueError` unless the folder is free, or holds this very run."""
    path = folder / DESCRIPTION
    if not path.exists():
        if folder.exists() and set(folder.iterdir()) - {*temporaries(folder), folder / LOCK}:
            raise ValueError(f"`folder` must be new, empty, or a run's. {folder} holds other files.")
        return
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
        changed = recipe.changes(before["recipe"])
        for name in ("pairs", "val_pairs"):
            if before[name] != description[name]:
                numbers = [(side[name] or {"number": "none"})["number"] for side in (before, description)]
                changed.append(f"{name}: {numbers[0]}, now {numbers[1]} or others")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a run's description: {error!r}") from None
    if changed and checkpoints(folder):
        raise ValueError(
            f"{folder} holds a run of another recipe; use that or another folder. Changed: {'; '.join(changed)}."
        )


class _Patience(keras.callbacks.Callback):
    """Ends the training when it is finished before its last epoch."""

    def __init__(self, folder, recipe):
        super().__init__()
        self.folder = folder
        self.recipe = recipe

    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = _finished(self.folder, self.recipe)
