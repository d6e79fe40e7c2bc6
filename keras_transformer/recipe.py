"""The recipe of a training run: every hyper-parameter, and what it makes."""

import dataclasses

from keras_transformer.backend import compiles
from keras_transformer.checks import check_positive, check_range, check_share
from keras_transformer.losses import MaskedCrossentropy
from keras_transformer.metrics import MaskedAccuracy, Perplexity
from keras_transformer.models import Transformer
from keras_transformer.schedules import CosineSchedule, InverseSquareRootSchedule, LinearSchedule
from keras_transformer.text import ByteTokenizer, SentencePieceTokenizer
from keras_transformer.training import Adam, AdamW


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
    attention_dropout: float = _option(0.0, "share of the attention weights dropped in training, in [0, 1)")
    activation_dropout: float = _option(0.0, "share of the inner activations dropped in training, in [0, 1)")
    activation: str = _option("relu", "activation of the feed-forward networks")
    normalize_first: bool = _option(False, "pre-norm instead of the paper's post-norm")
    tokenizer: str = _option("unigram", "kind of subwords", choices=("unigram", "bpe", "byte"))
    vocab_size: int = _option(8000, "ids of each vocabulary; little text gets fewer")
    character_coverage: float = _option(0.9995, "share of the text's characters that get an id, in [0.98, 1]")
    separate_vocabularies: bool = _option(False, "one vocabulary for each side instead of a joint one")
    init_from: str | None = _option(
        None,
        "run or saved translator whose weights and tokenizers are begun with; the sizes must be its own (none)",
    )
    epochs: int = _option(20, "passes over the pairs; a finished run goes on with a larger number")
    batch_tokens: int = _option(4096, "positions in a batch: rows times the longer side, padding included")
    max_length: int = _option(128, "longest side of a training pair in tokens")
    too_long: str = _option("skip", "what becomes of longer pairs", choices=("skip", "truncate", "error"))
    learning_rate: float | None = _option(
        None, "highest learning rate, after the warm-up (paper: by d_model)"
    )
    schedule: str = _option(
        "inverse_sqrt",
        "how the rate falls; linear and cosine end at 0 with the last epoch",
        choices=("inverse_sqrt", "linear", "cosine"),
    )
    warmup_steps: int = _option(4000, "steps until the highest learning rate")
    optimizer: str = _option("adam", "the paper's, or with weight decay", choices=("adam", "adamw"))
    adam_epsilon: float = _option(1e-9, "Adam's epsilon")
    weight_decay: float = _option(0.01, "share of the weights that adamw takes off, times the rate")
    clip_norm: float | None = _option(None, "longest gradient, over all weights (unlimited)")
    accumulation: int = _option(
        1,
        "batches whose gradients make one update: the mean of the batches' means, so a small batch weighs as much as a "
        "large one",
    )
    ema: float | None = _option(
        None,
        "momentum of a moving average of the weights, which is then what validates and translates (none)",
    )
    average_last: int = _option(1, "epochs whose weights are averaged for the final translator; 1 for none")
    patience: int | None = _option(
        None,
        "epochs without a better validation perplexity before training stops; needs validation pairs (all)",
    )
    subword_sampling: float | None = _option(
        None,
        "each epoch draws other segmentations: unigram's smoothing, bpe's share of merges left out (none)",
    )
    label_smoothing: float = _option(0.1, "share of probability spread over the vocabulary, in [0, 1)")
    precision: str = _option(
        "float32",
        "arithmetic of training; the saved model is float32 either way",
        choices=("float32", "mixed_bfloat16", "mixed_float16"),
    )
    xla: bool | None = _option(
        None, "compile the training step with XLA, once for each batch shape (where there is an accelerator)"
    )
    checkpoint_steps: int | None = _option(
        None, "steps between checkpoints within an epoch (at its end alone)"
    )
    seed: int = _option(1, "seed of weights, order and dropout")

    def __post_init__(self):
        check_positive(
            epochs=self.epochs,
            warmup_steps=self.warmup_steps,
            accumulation=self.accumulation,
            average_last=self.average_last,
            **{n: v for n in ("patience", "checkpoint_steps") if (v := getattr(self, n)) is not None},
        )
        check_share(
            attention_dropout=self.attention_dropout,
            activation_dropout=self.activation_dropout,
            label_smoothing=self.label_smoothing,
            weight_decay=self.weight_decay,
            **{n: v for n in ("dropout", "ema") if (v := getattr(self, n)) is not None},
        )
        check_range(
            0,
            above=True,
            adam_epsilon=self.adam_epsilon,
            **{n: v for n in ("clip_norm", "learning_rate") if (v := getattr(self, n)) is not None},
        )
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
                "`ema` and `average_last` are two ways to average: give one. "
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
                raise ValueError("`subword_sampling` needs subwords. Received: tokenizer='byte'.")

    def changes(self, described):
        """What a described recipe has otherwise, but for what may change between two calls: a list of str.

        Free are `checkpoint_steps`, `patience`, `average_last`, and `epochs` where the schedule does not end with them.
        """
        free = {"checkpoint_steps", "patience", "average_last"}
        if self.schedule == "inverse_sqrt":  # the others end with the last epoch
            free.add("epochs")
        return [
            f"{field.name}: {old!r}, now {getattr(self, field.name)!r}"
            for field in dataclasses.fields(self)
            if field.name not in free
            and (old := described.get(field.name, field.default)) != getattr(self, field.name)
        ]

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

    def model(self, source_vocab_size, target_vocab_size, steps, initial=None):
        """A fresh, compiled model, for `steps` batches an epoch, with the weights of an `initial` one where given."""
        names = ("num_layers", "d_model", "num_heads", "d_ff", "dropout")
        sizes = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        model = Transformer.from_preset(
            self.preset,
            source_vocab_size,
            target_vocab_size if self.separate_vocabularies else None,
            **sizes,
            attention_dropout=self.attention_dropout,
            activation_dropout=self.activation_dropout,
            activation=self.activation,
            normalize_first=self.normalize_first,
            dtype=self.precision,
        )
        if initial is not None:
            model.build()
            sizes, others = ([tuple(weight.shape) for weight in each.weights] for each in (model, initial))
            if sizes != others:
                raise ValueError(
                    "The recipe's sizes must be those of `init_from`. Received: "
                    f"{model.count_params():,} parameters in {len(sizes)} weights; {self.init_from} has "
                    f"{initial.count_params():,} in {len(others)}."
                )
            model.set_weights(initial.get_weights())
        model.compile(
            optimizer=self._optimizer(self._schedule(model.d_model, steps)),
            loss=MaskedCrossentropy(self.label_smoothing, pad_id=model.pad_id),
            metrics=[MaskedAccuracy(pad_id=model.pad_id), Perplexity(pad_id=model.pad_id)],
            jit_compile=compiles(self.xla),
        )
        return model

    def _schedule(self, d_model, steps):
        peak = self.learning_rate
        if peak is None:
            peak = (d_model * self.warmup_steps) ** -0.5  # "Attention Is All You Need", equation 3
        if self.schedule == "inverse_sqrt":
            return InverseSquareRootSchedule(peak, self.warmup_steps)
        kind = LinearSchedule if self.schedule == "linear" else CosineSchedule
        return kind(peak, self.epochs * steps // self.accumulation, self.warmup_steps)

    def _optimizer(self, schedule):
        """ "Attention Is All You Need", section 5.3, and what the recipe adds."""
        options = {
            "beta_1": 0.9,
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
