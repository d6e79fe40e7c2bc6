"""A training run: a folder with everything to go on training, to translate and to export."""

import csv
import dataclasses
import hashlib
import json
import math
import platform
from pathlib import Path

import keras
import tensorflow as tf

from keras_transformer.data import Batches
from keras_transformer.files import remove_temporaries, replaced, temporaries
from keras_transformer.recipe import Recipe
from keras_transformer.serving import Translator
from keras_transformer.serving.translator import load_model
from keras_transformer.training import Checkpoint, EpochSeeds, Progress, TensorBoard, latest_checkpoint

__all__ = ["Recipe", "read_history", "train"]

DESCRIPTION = "run.json"
HISTORY = "history.csv"


def train(recipe, pairs, folder, val_pairs=None, say=print):
    """Trains a model, or goes on training one, and keeps all of it in a folder.

    After each epoch the folder holds a checkpoint to resume from and a translator that `Translator.load` reads:
    the model of the best validation perplexity, or without validation pairs the newest. A run that was stopped
    between epochs or within one ends with the weights of a run that was not.

    Args:
        recipe: A `Recipe`. To resume it must be the run's own but for the number of epochs.
        pairs: List of (source, target) str.
        folder: The run's folder: new, empty, or one that an earlier call began.
        val_pairs: Pairs to validate with after each epoch, or None.
        say: Called with each line of news.

    Returns:
        The `Translator` that the folder holds.

    Raises:
        ValueError: If the folder holds something else, or a run of another recipe or other pairs.
    """
    folder = Path(folder)
    description = _description(recipe, pairs, val_pairs)
    path, done = latest_checkpoint(folder)
    _check(folder, description, recipe, done)
    remove_temporaries(folder)
    if done >= recipe.epochs:
        say(f"{folder}: nothing to do, {done} epochs are done.")
        return Translator.load(folder)

    keras.utils.set_random_seed(recipe.seed)  # each layer draws a seed of its own from this one
    if done:
        say(f"{folder}: {done} epochs done, going on.")
        model = load_model(path, compile=True)
        translator = Translator.load(folder)
        tokenizers = translator.source_tokenizer, translator.target_tokenizer
    else:
        tokenizers = recipe.tokenizers(pairs)
        model = recipe.model(*(tokenizer.vocab_size for tokenizer in tokenizers))
    limits = {
        "batch_tokens": recipe.batch_tokens,
        "max_length": recipe.max_length,
        "too_long": recipe.too_long,
    }
    batches = Batches(pairs, *tokenizers, seed=recipe.seed, **limits)
    val_batches = Batches(val_pairs, *tokenizers, **limits) if val_pairs else None
    say(
        f"{model.count_params():,} parameters, {tokenizers[0].vocab_size} source and "
        f"{tokenizers[1].vocab_size} target ids; {batches.kept:,} pairs, {batches.steps} steps an epoch, "
        f"{batches.padding:.0%} padding; {recipe.precision}, XLA {'on' if recipe.xla else 'off'}"
    )
    # Only now: a mistake in the recipe must not take the folder.
    with replaced(folder / DESCRIPTION) as temporary:
        temporary.write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")

    max_source_length = max(256, recipe.max_length)
    model.fit(
        batches.dataset(first_epoch=done),
        steps_per_epoch=batches.steps,
        epochs=recipe.epochs,
        initial_epoch=done,
        validation_data=val_batches.dataset(epochs=1).cache() if val_batches else None,
        callbacks=[
            EpochSeeds(recipe.seed),
            # In this order: a checkpoint says that all of its epoch is there.
            _Results(
                folder,
                done,
                lambda model: Translator(model, *tokenizers, max_source_length=max_source_length),
            ),
            Checkpoint(folder),
            TensorBoard(
                folder / "tensorboard",
                translator=Translator(model, *tokenizers, max_source_length=max_source_length),
                val_pairs=val_pairs,
            ),
            Progress(batches.steps, batches.tokens),
        ],
        shuffle=False,
        verbose=0,
    )
    return Translator.load(folder)


def read_history(folder):
    """What each epoch of a run measured: a list of dicts from column to str."""
    try:
        with open(Path(folder) / HISTORY, encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    except FileNotFoundError:
        return []


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


def _check(folder, description, recipe, done):
    """Raises `ValueError` unless the folder is free, or holds this very run."""
    path = folder / DESCRIPTION
    if not path.exists():
        if folder.exists() and set(folder.iterdir()) - set(temporaries(folder)):
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
    if changed and done:
        raise ValueError(
            f"{folder} holds a run of another recipe; use that or another folder. Changed: {'; '.join(changed)}."
        )


class _Results(keras.callbacks.Callback):
    """Keeps what each epoch measured, and the translator of the best one, in float32."""

    def __init__(self, folder, done, make_translator):
        super().__init__()
        self.folder = folder
        self.make_translator = make_translator
        self.rows = [row for row in read_history(folder) if int(row["epoch"]) < done]

    def on_epoch_end(self, epoch, logs=None):
        best = min((float(row.get("val_perplexity") or math.inf) for row in self.rows), default=math.inf)
        if not self.rows or not logs.get("val_perplexity", -math.inf) >= best:
            self._write_translator()
        self.rows.append({"epoch": epoch, **logs})
        with (
            replaced(self.folder / HISTORY) as temporary,
            open(temporary, "w", encoding="utf-8", newline="") as file,
        ):
            writer = csv.DictWriter(file, self.rows[-1])
            writer.writeheader()
            writer.writerows(self.rows)

    def _write_translator(self):
        model = self.model
        if model.compute_dtype != "float32":
            # Decoding gains nothing from lower precision: the weights are float32 already.
            model = type(model).from_config({**model.get_config(), "dtype": "float32"})
            model.set_weights(self.model.get_weights())
        self.make_translator(model).write_into(self.folder)
