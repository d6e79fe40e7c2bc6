"""A training run, from the beginning or from where it stopped."""

import contextlib
import dataclasses
import hashlib
import logging
import platform

import keras
import tensorflow as tf

from keras_transformer.checks import check, warn
from keras_transformer.data import Batches, Frame
from keras_transformer.data.unknown import SMALL_SHARE
from keras_transformer.execution import native
from keras_transformer.files import locked, remove_temporaries
from keras_transformer.models import Ensemble
from keras_transformer.runs.averaging import average_in_locked_folder
from keras_transformer.runs.folder import RunFolder, says_how_to_resume
from keras_transformer.runs.model import check_backend, make_model
from keras_transformer.runs.results import Results, ValidateAverage
from keras_transformer.runs.tokenizers import ids_and_sizes, make_tokenizers
from keras_transformer.runs.vocabulary import change_vocabulary, table_of
from keras_transformer.serving import Translator
from keras_transformer.text.sentence_piece import FEW
from keras_transformer.training import Checkpoint, Progress, SavedState, StopOnNaN, TensorBoard, Termination

log = logging.getLogger(__name__)

# Checkpoints of whole epochs that every run keeps: if the newest is damaged, the one before it is used.
MIN_CHECKPOINTS = 2


def train(recipe, pairs, folder, val_pairs=None, say=print):
    """Trains a model, or resumes its training, and keeps everything in one folder.

    After each epoch the folder holds a checkpoint to resume from and a translator that `Translator.load` reads. The
    translator has the model of the epoch with the best validation perplexity, or of the newest epoch without
    validation pairs. At the end it gets the mean weights of the last epochs, if the recipe asks for them.

    A run may be stopped at any step. The same call resumes it, and it ends with the weights of a run that was not
    stopped, bit for bit on one machine. On SIGTERM the run saves its state, within an epoch too.

    Example:
        recipe = Recipe(preset="tiny", epochs=5, learning_rate=0.002, warmup_steps=200)
        translator = train(recipe, [("Ein Hund bellt.", "A dog barks."), ...], "RUN")
        translator.translate(["Ein Hund bellt."])

    Args:
        recipe: A `Recipe`. To resume, it must be the recipe of the run; `Recipe.changes` says which fields may differ.
        pairs: The training pairs, a sequence of (source, target) str: a list, or what `data.read_parallel` returns,
            which may be larger than the memory.
        folder: The run's folder, a path: a new one, an empty one, or one that an earlier call began.
        val_pairs: The pairs to validate with after each epoch, a list of (source, target) str, or None. The recipe's
            `patience` needs them.
        say: A function that is called with each line of the report, a str.

    Returns:
        The `Translator` that the folder holds.

    Raises:
        ValueError: If Keras's backend is not TensorFlow, `patience` has no validation pairs, the folder holds other
            files or a run of another recipe or other pairs, no checkpoint of it can be read, or another process
            trains in it.
        Terminated: If SIGTERM came. The same call resumes the run.
        Diverged: If the loss or a weight is NaN or infinite. The checkpoints before it are whole.
    """
    check_backend("run")
    rule = "`patience` needs validation pairs."
    check(recipe.patience is None or val_pairs, rule, patience=recipe.patience, val_pairs=val_pairs)
    folder = RunFolder(folder)
    recipe = folder.planned(recipe)
    description = _describe(recipe, pairs, val_pairs)
    # Checked before the lock, which writes a file: a folder of other files stays unchanged.
    folder.check(recipe, description)
    with locked(folder.path):
        # Another process may have begun a run before the lock.
        folder.check(recipe, description)
        remove_temporaries(folder.path)
        folder.update_description(description)
        if folder.is_finished(recipe) and not folder.lacks_average(recipe):
            say(f"{folder}: nothing to do, {folder.epochs_done} epochs are done.")
        recipe = _train_epochs(recipe, pairs, val_pairs, folder, description, say)
        # An earlier call may have stopped between its last epoch and the mean.
        if folder.lacks_average(recipe):
            _average_last(recipe, folder, say)
        log.info("trained", extra={"folder": str(folder), "epochs": folder.epochs_done})
        return Translator.load(folder.path)


def _train_epochs(recipe, pairs, val_pairs, folder, description, say):
    """Trains until the run is finished; returns the recipe with its epochs and its warm-up."""
    with Termination() as termination:
        while not folder.is_finished(recipe):
            with says_how_to_resume(folder.path, "run", say):
                _train_once(recipe, pairs, val_pairs, folder, description, termination, say)
            recipe = folder.planned(recipe)
    return recipe


def _train_once(recipe, pairs, val_pairs, folder, description, termination, say):
    """Trains to the last epoch; or, if the newest checkpoint is within an epoch, to the end of that epoch."""
    # Each layer draws its own seed from this one.
    keras.utils.set_random_seed(recipe.seed)
    if folder.checkpoints():
        model, saved = _restore(folder, say)
        translator = folder.translator(model)
        batches, val_batches = _make_batches(
            recipe, pairs, val_pairs, translator.tokenizers, translator.frame
        )
    else:
        saved = SavedState(None)
        asked = recipe
        recipe, translator, batches, val_batches = _begin(recipe, pairs, val_pairs, say)
        model = translator.model
        # Whatever can refuse a wrong recipe has run by now.
        folder.begin({**description, "recipe": dataclasses.asdict(recipe.resolved())}, translator)
        if asked != recipe:
            updates = recipe.updates(batches.steps)
            say(
                f"{recipe.epochs} epochs, {updates:,} updates; {recipe.warmup_steps:,} of them are the warm-up"
            )
        _report(recipe, translator, batches, val_batches, say)
    progress = Progress(batches.steps, batches.tokens, first_step=saved.steps, epochs=recipe.epochs, say=say)
    callbacks = _callbacks(recipe, folder, translator, batches, val_pairs, saved, termination, progress)
    with contextlib.closing(progress):
        model.fit(
            batches.dataset(first_epoch=saved.epochs, first_step=saved.steps),
            steps_per_epoch=batches.steps - saved.steps,
            epochs=saved.epochs + 1 if saved.steps else recipe.epochs,
            initial_epoch=saved.epochs,
            validation_data=val_batches.dataset(epochs=1).cache() if val_batches else None,
            callbacks=callbacks,
            shuffle=False,
            verbose=0,
        )


def _restore(folder, say):
    """Loads the model of the newest checkpoint, and reports how far the run is."""
    model, saved = folder.restore()
    say(f"{folder}: {saved} done, going on.")
    return model, saved


def _begin(recipe, pairs, val_pairs, say):
    """Plans a new run; returns its recipe, its translator, its training batches and its validation batches."""
    limit = max(256, recipe.max_length)
    if recipe.init_from is None:
        tokenizers = make_tokenizers(recipe, pairs)
        frame = Frame(**ids_and_sizes(*tokenizers)[0])
        batches, val_batches = _make_batches(recipe, pairs, val_pairs, tokenizers, frame)
        recipe = recipe.planned(batches.steps)
        model = make_model(recipe, tokenizers, batches.steps)
        return recipe, Translator(model, *tokenizers, max_source_length=limit), batches, val_batches
    initial = Translator.load(recipe.init_from)
    rule = "`init_from` must hold one model. A run cannot train an `Ensemble`: pass one of its runs."
    check(not isinstance(initial.model, Ensemble), rule, init_from=recipe.init_from)
    for name in ("max_source_positions", "max_positions"):
        longest = getattr(initial.model, name, None)
        rule = f"`max_length` must be at most the number of positions that the model of `init_from` has, {longest}."
        check(longest is None or recipe.max_length <= longest, rule, max_length=recipe.max_length)
    if recipe.has_own_tokenizers:
        initial, changes = change_vocabulary(initial, *make_tokenizers(recipe, pairs))
        for line in table_of(changes):
            say(line)
    batches, val_batches = _make_batches(recipe, pairs, val_pairs, initial.tokenizers, initial.frame)
    recipe = recipe.planned(batches.steps)
    model = make_model(recipe, initial.tokenizers, batches.steps, initial.model)
    limit = max(initial.max_source_length, recipe.max_length)
    return recipe, initial.changed(model=model, max_source_length=limit), batches, val_batches


def _make_batches(recipe, pairs, val_pairs, tokenizers, frame):
    """Makes the training batches and the validation batches; the latter are None without pairs.

    Args:
        recipe: The `Recipe`.
        pairs: The training pairs.
        val_pairs: The pairs to validate with, or None.
        tokenizers: The source tokenizer and the target tokenizer.
        frame: The `Frame`, the ids around texts.
    """
    if recipe.subword_sampling is not None:
        rule = "`subword_sampling` needs tokenizers that draw subwords, as those of SentencePiece."
        for tokenizer in tokenizers:
            check(hasattr(tokenizer, "sampled"), rule, tokenizer=type(tokenizer).__name__)
    options = {
        "batch_tokens": recipe.batch_tokens,
        "max_length": recipe.max_length,
        "too_long": recipe.too_long,
        "frame": frame,
    }
    batches = Batches(pairs, tokenizers, seed=recipe.seed, sampling=recipe.subword_sampling, **options)
    return batches, Batches(val_pairs, tokenizers, **options) if val_pairs else None


def _report(recipe, translator, batches, val_batches, say):
    """Reports the sizes of a new run, and warns if it ends within its warm-up."""
    model, sizes = translator.model, [tokenizer.vocab_size for tokenizer in translator.tokenizers]
    if recipe.init_from is not None:
        tokenizers = (
            f"the tokenizers of {recipe.tokenizer}" if recipe.has_own_tokenizers else "its tokenizers"
        )
        say(f"{recipe.init_from}: the training goes on with its {type(model).__name__} and {tokenizers}")
    gpus = len(tf.config.list_logical_devices("GPU"))
    device = (
        f"the first of {gpus} GPUs" if gpus > 1 else "the GPU" if gpus else "the CPU: TensorFlow finds no GPU"
    )
    say(
        f"{model.count_params():,} parameters, {sizes[0]} source and {sizes[1]} target ids; "
        f"{batches.kept:,} pairs, {batches.steps} steps an epoch, {batches.padding:.0%} padding; "
        f"{val_batches.kept if val_batches else 0:,} pairs to validate with; "
        f"{recipe.precision}, XLA {'on' if native.compiles(recipe.xla) else 'off'}; on {device}"
    )
    if 1 < len(batches.shapes) == batches.steps:
        say("each step has all pairs of similar lengths: a larger `batch_tokens` changes nothing")
    read = batches.kept + batches.skipped
    resolved = recipe.resolved()
    asked, sample = resolved.vocab_size, resolved.vocab_sample
    # Below it, the tokenizer has warned.
    if asked is not None and recipe.tokenizer != "byte" and FEW * asked <= min(sizes) < asked:
        say(f"a vocabulary of {min(sizes):,} ids: the texts do not give the {asked:,} of `vocab_size`")
    if sample is not None and recipe.tokenizer != "byte" and read > sample:
        say(f"the vocabulary is made from {sample:,} of {read:,} pairs (`vocab_sample`)")
    if recipe.lora is not None:
        trained = sum(weight.shape.num_elements() for weight in model.trainable_variables)
        say(f"adapters of rank {recipe.lora}: {trained:,} parameters are trained")
    for side, unknown in batches.unknown.items():
        # Above this share, the batches have warned.
        if 0 < unknown.share <= SMALL_SHARE:
            say(f"{side}: {unknown}")
    updates = recipe.updates(batches.steps)
    if updates <= recipe.warmup_steps:
        warn(
            f"the training ends after {updates} updates, within the warm-up of {recipe.warmup_steps}: it may "
            "learn little. Leave the warm-up (`warmup_steps`) out, or use about "
            f"{max(1, updates // 4)} and a highest learning rate of about 0.002, or more epochs, or smaller batches."
        )


def _callbacks(recipe, folder, translator, batches, val_pairs, saved, termination, progress):
    return [
        StopOnNaN(batches.texts, first_step=saved.steps),
        *([ValidateAverage()] if recipe.ema is not None else []),
        # Results come before the checkpoint: a checkpoint promises that everything of its epoch is written.
        Results(folder.path, saved.epochs, translator),
        Checkpoint(
            folder.path,
            keep=max(MIN_CHECKPOINTS, recipe.average_last),
            every=recipe.checkpoint_steps,
            resumed=saved,
            termination=termination,
        ),
        TensorBoard(folder.path / "tensorboard", translator=translator, val_pairs=val_pairs),
        progress,
        _StopWhenFinished(folder, recipe),
    ]


class _StopWhenFinished(keras.callbacks.Callback):
    """Stops the training when the run is finished, which `patience` can cause before the last epoch."""

    def __init__(self, folder, recipe):
        super().__init__()
        self.folder = folder
        self.recipe = recipe

    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = self.folder.is_finished(self.recipe)


def _average_last(recipe, folder, say):
    """Averages the last epochs, or as many of them as have a checkpoint."""
    last = min(recipe.average_last, len(folder.whole_epochs()))
    if last < recipe.average_last:
        warn(
            f"`average_last` is {recipe.average_last}, but {folder} keeps the checkpoints of only {last} "
            "epochs. The translator gets their mean."
        )
    average_in_locked_folder(folder, last, say)


def _describe(recipe, pairs, val_pairs):
    """Returns the content of `run.json`, a dict: the recipe, fingerprints of the pairs, versions."""

    def fingerprint(pairs):
        digest = hashlib.sha256()
        for pair in pairs:
            digest.update(repr(pair).encode("utf-8", "surrogatepass"))
        return {"number": len(pairs), "sha256": digest.hexdigest()}

    return {
        "recipe": dataclasses.asdict(recipe.resolved()),
        "pairs": fingerprint(pairs),
        "val_pairs": fingerprint(val_pairs) if val_pairs else None,
        "versions": {
            "python": platform.python_version(),
            "keras": keras.__version__,
            "tensorflow": tf.__version__,
        },
    }
