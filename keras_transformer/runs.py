"""A training run: a folder with everything to go on training, to translate and to export."""

import csv
import dataclasses
import hashlib
import json
import platform
from pathlib import Path

import keras
import tensorflow as tf

from keras_transformer.data import Batches
from keras_transformer.files import replaced
from keras_transformer.losses import MaskedCrossentropy
from keras_transformer.metrics import MaskedAccuracy, Perplexity
from keras_transformer.models import Transformer
from keras_transformer.schedules import WarmupSchedule
from keras_transformer.serving import Translator
from keras_transformer.serving.translator import load_model
from keras_transformer.text import ByteTokenizer, SentencePieceTokenizer
from keras_transformer.training import Checkpoint, Progress, latest_checkpoint

DESCRIPTION = "run.json"
HISTORY = "history.csv"


def _option(default, explanation, **more):
    return dataclasses.field(default=default, metadata={"help": explanation, **more})


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Every hyper-parameter of a run: the model's, the tokenizer's and the training's.

    None stands for what the preset or the paper says. The command line has one option for each field.
    """

    preset: str = _option(
        "tiny", "model size that the options below start from", choices=("tiny", "base", "big")
    )
    num_layers: int | None = _option(None, "encoder layers, and decoder layers")
    d_model: int | None = _option(None, "width of the model")
    num_heads: int | None = _option(None, "attention heads")
    d_ff: int | None = _option(None, "inner width of the feed-forward networks")
    dropout: float | None = _option(None, "share dropped in training, in [0, 1)")
    activation: str = _option("relu", "activation of the feed-forward networks")
    normalize_first: bool = _option(False, "pre-norm instead of the paper's post-norm")
    tokenizer: str = _option("unigram", "kind of subwords", choices=("unigram", "bpe", "byte"))
    vocab_size: int = _option(8000, "ids of each vocabulary; a unigram model of little text gets fewer")
    character_coverage: float = _option(0.9995, "share of the text's characters that get an id, in (0, 1]")
    separate_vocabularies: bool = _option(False, "one vocabulary for each side instead of a joint one")
    epochs: int = _option(20, "passes over the pairs; a finished run goes on with a larger number")
    batch_tokens: int = _option(4096, "positions in a batch: rows times the longer side, padding included")
    max_length: int = _option(128, "longest side of a training pair in tokens")
    too_long: str = _option("skip", "what becomes of longer pairs", choices=("skip", "truncate", "error"))
    learning_rate: float | None = _option(
        None, "highest learning rate, after the warm-up (paper: by d_model)"
    )
    warmup_steps: int = _option(4000, "steps until the highest learning rate")
    label_smoothing: float = _option(0.1, "share of probability spread over the vocabulary, in [0, 1)")
    precision: str = _option(
        "float32",
        "arithmetic of training; the saved model is float32 either way",
        choices=("float32", "mixed_bfloat16", "mixed_float16"),
    )
    xla: bool = _option(False, "compile the training step with XLA, once for each batch shape")
    seed: int = _option(1, "seed of weights, order and dropout")

    def __post_init__(self):
        if self.epochs < 1:
            raise ValueError(f"`epochs` must be positive. Received: epochs={self.epochs}.")
        if self.learning_rate is not None and not self.learning_rate > 0:
            raise ValueError(
                f"`learning_rate` must be positive. Received: learning_rate={self.learning_rate}."
            )

    def tokenizers(self, pairs):
        """Trains the tokenizers: one for both sides, or one for each."""
        if self.tokenizer == "byte":
            joint = ByteTokenizer()
            return joint, joint

        def trained(sentences):
            return SentencePieceTokenizer.train(
                sentences,
                self.vocab_size,
                model_type=self.tokenizer,
                character_coverage=self.character_coverage,
            )

        sources, targets = zip(*pairs, strict=True)
        if self.separate_vocabularies:
            return trained(sources), trained(targets)
        joint = trained([*sources, *targets])
        return joint, joint

    def model(self, source_vocab_size, target_vocab_size):
        """A fresh, compiled model."""
        names = ("num_layers", "d_model", "num_heads", "d_ff", "dropout")
        sizes = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        model = Transformer.from_preset(
            self.preset,
            source_vocab_size,
            target_vocab_size if self.separate_vocabularies else None,
            **sizes,
            activation=self.activation,
            normalize_first=self.normalize_first,
            dtype=self.precision,
        )
        schedule = WarmupSchedule(model.d_model, self.warmup_steps)
        if self.learning_rate is not None:
            schedule = WarmupSchedule.from_peak(self.learning_rate, self.warmup_steps, model.d_model)
        model.compile(
            # "Attention Is All You Need", section 5.3.
            optimizer=keras.optimizers.Adam(schedule, beta_1=0.9, beta_2=0.98, epsilon=1e-9),
            loss=MaskedCrossentropy(self.label_smoothing, pad_id=model.pad_id),
            metrics=[MaskedAccuracy(pad_id=model.pad_id), Perplexity(pad_id=model.pad_id)],
            jit_compile=self.xla,
        )
        return model


def train(recipe, pairs, folder, val_pairs=None, say=print):
    """Trains a model, or goes on training one, and keeps all of it in a folder.

    After each epoch the folder holds a checkpoint to resume from and a translator that `Translator.load` reads:
    the model of the best validation perplexity, or without validation pairs the newest.

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
    keras.utils.set_random_seed(recipe.seed)  # each layer draws a seed of its own from this one
    done = _begin_or_resume(recipe, pairs, folder)
    if done:
        translator = Translator.load(folder)
        source_tokenizer, target_tokenizer = translator.source_tokenizer, translator.target_tokenizer
        path, _ = latest_checkpoint(folder)
        model = load_model(path, compile=True)
        say(f"{folder}: {done} epochs done, going on.")
    else:
        source_tokenizer, target_tokenizer = recipe.tokenizers(pairs)
        model = recipe.model(source_tokenizer.vocab_size, target_tokenizer.vocab_size)
    if done >= recipe.epochs:
        say(f"{folder}: nothing to do, {recipe.epochs} epochs are done.")
        return translator

    shared = {"batch_tokens": recipe.batch_tokens, "max_length": recipe.max_length}
    tokenizers = source_tokenizer, target_tokenizer
    batches = Batches(pairs, *tokenizers, too_long=recipe.too_long, seed=recipe.seed, **shared)
    val_batches = Batches(val_pairs, *tokenizers, **shared) if val_pairs else None
    say(
        f"{model.count_params():,} parameters, {source_tokenizer.vocab_size} source and "
        f"{target_tokenizer.vocab_size} target ids; {batches.kept:,} pairs, {batches.steps} steps an epoch, "
        f"{batches.padding:.0%} padding; {recipe.precision}, XLA {'on' if recipe.xla else 'off'}"
    )
    callbacks = [
        _BestTranslator(folder, tokenizers, val_batches is not None),
        Checkpoint(folder),
        _History(folder / HISTORY, done),
        Progress(batches.steps, batches.tokens),
    ]
    model.fit(
        batches.dataset(first_epoch=done),
        steps_per_epoch=batches.steps,
        epochs=recipe.epochs,
        initial_epoch=done,
        validation_data=val_batches.dataset(epochs=1).cache() if val_batches else None,
        callbacks=callbacks,
        shuffle=False,
        verbose=0,
    )
    return Translator.load(folder)


def _begin_or_resume(recipe, pairs, folder):
    """Checks the folder against the recipe, writes the run's description and tells the epochs already done."""
    digest = hashlib.sha256(repr(pairs).encode("utf-8", "surrogatepass")).hexdigest()
    described = {
        "recipe": dataclasses.asdict(recipe),
        "pairs": {"number": len(pairs), "sha256": digest},
        "versions": {
            "python": platform.python_version(),
            "keras": keras.__version__,
            "tensorflow": tf.__version__,
        },
    }
    path = folder / DESCRIPTION
    if not path.exists():
        if folder.exists() and any(folder.iterdir()):
            raise ValueError(
                f"`folder` must be new, empty, or a run's. Received: {folder}, which holds other files."
            )
    else:
        try:
            before = json.loads(path.read_text(encoding="utf-8"))
            old_recipe, old_pairs = before["recipe"], before["pairs"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is not a run's description: {error!r}") from None
        changed = [
            f"{name}: {old_recipe.get(name)!r}, now {value!r}"
            for name, value in described["recipe"].items()
            if name != "epochs" and old_recipe.get(name) != value
        ]
        if old_pairs != described["pairs"]:
            changed.append(f"training pairs: {old_pairs['number']}, now {len(pairs)} or others")
        if changed:
            raise ValueError(
                f"{folder} holds a run of another recipe; use it or another folder. Changed: {'; '.join(changed)}."
            )
    with replaced(path) as temporary:
        temporary.write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
    return latest_checkpoint(folder)[1]


class _BestTranslator(keras.callbacks.Callback):
    """Keeps the translator of the best epoch in the run's folder, in float32."""

    def __init__(self, folder, tokenizers, validates):
        super().__init__()
        self.folder = folder
        self.tokenizers = tokenizers
        self.validates = validates

    def on_train_begin(self, logs=None):
        self.best = float("inf")
        if self.validates and (self.folder / HISTORY).exists():
            self.best = min(
                (float(row["val_perplexity"]) for row in read_history(self.folder)), default=self.best
            )

    def on_epoch_end(self, epoch, logs=None):
        perplexity = logs["val_perplexity"] if self.validates else None
        if perplexity is not None:
            if perplexity >= self.best:
                return
            self.best = perplexity
        # Decoding gains nothing from lower precision: the weights are float32 already.
        model = type(self.model).from_config({**self.model.get_config(), "dtype": "float32"})
        model.set_weights(self.model.get_weights())
        Translator(model, *self.tokenizers).write_into(self.folder)


class _History(keras.callbacks.CSVLogger):
    """One line an epoch in the run's folder; lines of epochs that must be trained again are dropped."""

    def __init__(self, path, done):
        super().__init__(path, append=True)
        if path.exists():
            head, *rows = path.read_text(encoding="utf-8").splitlines(keepends=True)
            with replaced(path) as temporary:
                temporary.write_text("".join([head, *rows[:done]]), encoding="utf-8")


def read_history(folder):
    """What each epoch of a run measured: a list of dicts from column to str."""
    with open(Path(folder) / HISTORY, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
