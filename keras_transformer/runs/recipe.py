"""The recipe of a training run: every hyper-parameter, and the tokenizers and the model that follow from them."""

import dataclasses

import numpy as np

from keras_transformer.checks import check_positive, check_range, check_share
from keras_transformer.execution.compiled import compiles
from keras_transformer.losses import MaskedCrossentropy
from keras_transformer.metrics import MaskedAccuracy, Perplexity
from keras_transformer.models import Transformer
from keras_transformer.schedules import CosineSchedule, InverseSquareRootSchedule, LinearSchedule
from keras_transformer.text import ByteTokenizer, SentencePieceTokenizer
from keras_transformer.training import Adam, AdamW


def _option(default, explanation, **metadata):
    return dataclasses.field(default=default, metadata={"help": explanation, **metadata})


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Every hyper-parameter of a run: of the model, of the tokenizers and of the training.

    A field that is None takes the value of the preset, or of "Attention Is All You Need", or switches its feature off.
    `keras-transformer train` has one option for each field, and its `--help` explains each as the list below does.

    >>> recipe = Recipe(preset="base", epochs=5)
    >>> recipe.epochs, recipe.batch_tokens
    (5, 4096)

    Raises:
        ValueError: If a value is out of its range, or two fields contradict each other.
    """

    preset: str = _option(
        "tiny", "model size; the sizes below override single values of it", choices=("tiny", "base", "big")
    )
    num_layers: int | None = _option(None, "number of encoder layers, and of decoder layers")
    d_model: int | None = _option(None, "width of the model")
    num_heads: int | None = _option(None, "number of attention heads")
    d_ff: int | None = _option(None, "inner width of the feed-forward networks")
    dropout: float | None = _option(None, "dropout rate in training, in [0, 1)")
    attention_dropout: float = _option(0.0, "dropout rate of the attention weights in training, in [0, 1)")
    activation_dropout: float = _option(
        0.0, "dropout rate inside the feed-forward networks in training, in [0, 1)"
    )
    activation: str = _option("relu", "activation of the feed-forward networks")
    normalize_first: bool = _option(False, "pre-norm instead of the paper's post-norm")
    norm: str = _option(
        "layer", "layer normalisation or root-mean-square normalisation", choices=("layer", "rms")
    )
    tokenizer: str = _option("unigram", "kind of subwords", choices=("unigram", "bpe", "byte"))
    vocab_size: int = _option(8000, "largest number of ids in each vocabulary; a small corpus gets fewer")
    character_coverage: float = _option(
        0.9995, "share of the characters in the text that get an id, in [0.98, 1]"
    )
    vocab_sample: int = _option(
        100_000,
        "number of sentence pairs, drawn evenly, that the vocabularies are made from; all if there are fewer",
    )
    separate_vocabularies: bool = _option(False, "one vocabulary for each side instead of a shared one")
    init_from: str | None = _option(
        None,
        "folder of a run or a saved translator; training starts from its weights and tokenizers, so the sizes must be "
        "the same (default: none)",
    )
    epochs: int = _option(20, "number of passes over the pairs; a larger number continues a finished run")
    batch_tokens: int = _option(
        4096, "size of a batch: its rows times its longer side in tokens, padding included"
    )
    max_length: int = _option(128, "longest side of a training pair, in tokens")
    too_long: str = _option(
        "skip", "how to treat pairs that are longer than max_length", choices=("skip", "truncate", "error")
    )
    learning_rate: float | None = _option(
        None, "highest learning rate, reached after the warm-up (default: the paper's, computed from d_model)"
    )
    schedule: str = _option(
        "inverse_sqrt",
        "how the learning rate falls; linear and cosine reach 0 with the last epoch",
        choices=("inverse_sqrt", "linear", "cosine"),
    )
    warmup_steps: int = _option(4000, "number of steps until the highest learning rate")
    optimizer: str = _option("adam", "the paper's Adam, or Adam with weight decay", choices=("adam", "adamw"))
    adam_epsilon: float = _option(1e-9, "epsilon of Adam")
    weight_decay: float = _option(
        0.01, "weight decay of adamw: the share of each weight that a step subtracts, times the learning rate"
    )
    clip_norm: float | None = _option(
        None, "largest norm of the gradient of all weights together (default: no limit)"
    )
    accumulation: int = _option(
        1,
        "number of batches whose gradients make one update: the mean of the batches' means, so a small batch weighs as "
        "much as a large one",
    )
    ema: float | None = _option(
        None,
        "momentum of a moving average of the weights; validation and the translator then use the average "
        "(default: none)",
    )
    average_last: int = _option(
        1, "number of last epochs whose mean weights the final translator gets; 1 for no mean"
    )
    patience: int | None = _option(
        None,
        "training stops after so many epochs without a better validation perplexity; needs validation pairs "
        "(default: never)",
    )
    subword_sampling: float | None = _option(
        None,
        "draw new segmentations in each epoch: for unigram the smoothing, for bpe the share of merges that are left "
        "out (default: none)",
    )
    label_smoothing: float = _option(0.1, "share of probability spread over the vocabulary, in [0, 1)")
    r_drop: float = _option(
        0.0,
        "weight of R-Drop: each batch is computed twice, with two dropouts, and the divergence of the two is part of "
        "the loss; 0 for none, 5 in the paper",
    )
    precision: str = _option(
        "float32",
        "number format of the training; the saved model is always float32",
        choices=("float32", "mixed_bfloat16", "mixed_float16"),
    )
    xla: bool | None = _option(
        None,
        "compile the training step with XLA, once for each batch shape (default: only on an accelerator)",
    )
    checkpoint_steps: int | None = _option(
        None, "number of steps between checkpoints within an epoch (default: none)"
    )
    seed: int = _option(1, "seed of the initial weights, the order of the pairs and the dropout")

    def __post_init__(self):
        check_positive(
            **self._values(
                "epochs",
                "vocab_sample",
                "warmup_steps",
                "accumulation",
                "average_last",
                "patience",
                "checkpoint_steps",
            )
        )
        check_share(
            **self._values(
                "attention_dropout", "activation_dropout", "label_smoothing", "weight_decay", "dropout", "ema"
            )
        )
        check_range(0, r_drop=self.r_drop)
        check_range(0, above=True, **self._values("adam_epsilon", "clip_norm", "learning_rate"))
        for field in dataclasses.fields(self):
            choices, value = field.metadata.get("choices"), getattr(self, field.name)
            if choices and value not in choices:
                raise ValueError(
                    f"`{field.name}` must be one of {choices}. Received: {field.name}={value!r}."
                )
        if not 0.98 <= self.character_coverage <= 1:
            raise ValueError(
                "`character_coverage` must be in [0.98, 1]. "
                f"Received: character_coverage={self.character_coverage}."
            )
        if self.ema is not None and self.average_last > 1:
            raise ValueError(
                "`ema` and `average_last` both average the weights. Give only one of them. "
                f"Received: ema={self.ema}, average_last={self.average_last}."
            )
        if self.average_last > self.epochs:
            raise ValueError(
                "`average_last` must be at most `epochs`. "
                f"Received: average_last={self.average_last}, epochs={self.epochs}."
            )
        if self.subword_sampling is not None:
            check_range(0, 1, above=True, subword_sampling=self.subword_sampling)
            if self.tokenizer == "byte":
                raise ValueError(
                    "`subword_sampling` needs a tokenizer of subwords. Received: tokenizer='byte'."
                )

    def _values(self, *names):
        """Returns these fields as a dict, without the optional ones that are None."""
        optional = {field.name for field in dataclasses.fields(self) if field.default is None}
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None or name not in optional}

    def changes(self, earlier):
        """Lists the fields that differ from an earlier recipe and must not differ when a run resumes.

        `checkpoint_steps`, `patience` and `average_last` may differ. `epochs` may differ too with the schedule
        `"inverse_sqrt"`; the other schedules end with the last epoch.

        Args:
            earlier: The earlier recipe as `dataclasses.asdict` returns it, a dict. A field that it lacks has the
                default value.

        Returns:
            A list of str, one for each field: its name, its earlier value and its value now.
        """
        free = {"checkpoint_steps", "patience", "average_last"}
        if self.schedule == "inverse_sqrt":
            free.add("epochs")
        return [
            f"{field.name}: {old!r}, now {getattr(self, field.name)!r}"
            for field in dataclasses.fields(self)
            if field.name not in free
            and (old := earlier.get(field.name, field.default)) != getattr(self, field.name)
        ]

    def tokenizers(self, pairs):
        """Trains the tokenizers.

        Args:
            pairs: The training pairs, a sequence of (source, target) str.

        Returns:
            The source tokenizer and the target tokenizer; one object twice if they share a vocabulary.
        """
        if self.tokenizer == "byte":
            shared = ByteTokenizer()
            return shared, shared

        def trained_on(sentences):
            return SentencePieceTokenizer.train(
                sentences,
                self.vocab_size,
                model_type=self.tokenizer,
                character_coverage=self.character_coverage,
            )

        if len(pairs) > self.vocab_sample:
            rng = np.random.default_rng(self.seed)
            numbers = rng.choice(len(pairs), self.vocab_sample, replace=False, shuffle=False)
            pairs = [pairs[i] for i in np.sort(numbers)]
        sources, targets = zip(*pairs, strict=True)
        if self.separate_vocabularies:
            return trained_on(sources), trained_on(targets)
        shared = trained_on([*sources, *targets])
        return shared, shared

    def model(self, source_vocab_size, target_vocab_size, steps, initial=None):
        """Makes a new, compiled model.

        Args:
            source_vocab_size: Number of ids of the source tokenizer, an int.
            target_vocab_size: Number of ids of the target tokenizer, an int.
            steps: Number of batches in an epoch, an int; the schedule needs it.
            initial: A model whose weights the new one starts with, or None.

        Returns:
            The `Transformer`.

        Raises:
            ValueError: If `initial` has other sizes than the recipe.
        """
        model = Transformer.from_preset(
            self.preset,
            source_vocab_size,
            target_vocab_size if self.separate_vocabularies else None,
            **self._values("num_layers", "d_model", "num_heads", "d_ff", "dropout"),
            attention_dropout=self.attention_dropout,
            activation_dropout=self.activation_dropout,
            activation=self.activation,
            normalize_first=self.normalize_first,
            norm=self.norm,
            dtype=self.precision,
        )
        if initial is not None:
            self._copy_weights(initial, model)
        model.compile(
            optimizer=self._optimizer(self._schedule(model.d_model, steps)),
            loss=MaskedCrossentropy(self.label_smoothing, pad_id=model.pad_id),
            metrics=[MaskedAccuracy(pad_id=model.pad_id), Perplexity(pad_id=model.pad_id)],
            jit_compile=compiles(self.xla),
            r_drop=self.r_drop,
        )
        return model

    def _copy_weights(self, initial, model):
        shapes, initial_shapes = ([tuple(w.shape) for w in each.weights] for each in (model, initial))
        if shapes != initial_shapes:
            raise ValueError(
                "The recipe's sizes must be those of `init_from`. Received: "
                f"{model.count_params():,} parameters in {len(shapes)} weights; {self.init_from} has "
                f"{initial.count_params():,} in {len(initial_shapes)}."
            )
        model.set_weights(initial.get_weights())

    def _schedule(self, d_model, steps):
        peak = self.learning_rate
        if peak is None:
            peak = (d_model * self.warmup_steps) ** -0.5  # "Attention Is All You Need", equation 3
        if self.schedule == "inverse_sqrt":
            return InverseSquareRootSchedule(peak, self.warmup_steps)
        schedule_class = LinearSchedule if self.schedule == "linear" else CosineSchedule
        return schedule_class(peak, self.epochs * steps // self.accumulation, self.warmup_steps)

    def _optimizer(self, schedule):
        options = {
            "beta_1": 0.9,  # both betas: "Attention Is All You Need", section 5.3
            "beta_2": 0.98,
            "epsilon": self.adam_epsilon,
            "global_clipnorm": self.clip_norm,
        }
        if self.accumulation > 1:
            options["gradient_accumulation_steps"] = self.accumulation
        if self.ema is not None:
            options |= {"use_ema": True, "ema_momentum": self.ema}
        if self.optimizer == "adam":
            return Adam(schedule, **options)
        return AdamW(schedule, weight_decay=self.weight_decay, **options)


# The list of arguments comes from the fields, so that it and `--help` have one source.
Recipe.__doc__ = (
    Recipe.__doc__.rstrip()
    + "\n\n    Args:\n"
    + "".join(f"        {field.name}: {field.metadata['help']}.\n" for field in dataclasses.fields(Recipe))
)
