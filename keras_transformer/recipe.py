"""The recipe of a training run: every hyper-parameter, and what it makes."""

import dataclasses

import keras

from keras_transformer.checks import check_positive
from keras_transformer.losses import MaskedCrossentropy
from keras_transformer.metrics import MaskedAccuracy, Perplexity
from keras_transformer.models import Transformer
from keras_transformer.schedules import WarmupSchedule
from keras_transformer.text import ByteTokenizer, SentencePieceTokenizer


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
    vocab_size: int = _option(8000, "ids of each vocabulary; a unigram model of little text gets fewer")
    character_coverage: float = _option(0.9995, "share of the text's characters that get an id, in [0.98, 1]")
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
        check_positive(epochs=self.epochs, warmup_steps=self.warmup_steps)
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
        if self.learning_rate is not None and not self.learning_rate > 0:
            raise ValueError(
                f"`learning_rate` must be positive. Received: learning_rate={self.learning_rate}."
            )

    def changes(self, described):
        """What a described recipe has otherwise, but for the number of epochs: a list of str."""
        return [
            f"{field.name}: {old!r}, now {getattr(self, field.name)!r}"
            for field in dataclasses.fields(self)
            if field.name != "epochs"
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

    def model(self, source_vocab_size, target_vocab_size):
        """A fresh, compiled model."""
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
