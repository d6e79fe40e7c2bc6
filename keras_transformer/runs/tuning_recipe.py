"""The recipe of a tuning: every hyper-parameter. Reading it imports no Keras, so that `--help` is quick."""

import dataclasses

from keras_transformer.checks import check, check_count, check_positive, check_range, check_share
from keras_transformer.runs.recipe import arguments_of_fields, check_choices, option

TARGETS = "query,value"


@dataclasses.dataclass(frozen=True)
class TuningRecipe:
    """Every hyper-parameter of a tuning: what is trained, on which rows, and how.

    `keras-transformer tune` has one option for each field.

    >>> TuningRecipe(lora=8, epochs=2).lora
    8

    Raises:
        ValueError: If a value is out of its range, or two fields contradict each other.
    """

    lora: int | None = option(
        None,
        "freeze the model, and train only LoRA's adapters of this rank (default: all weights are trained)",
    )
    alpha: float | None = option(None, "factor of the adapters times their rank (default: the rank)")
    rank_stabilized: bool = option(
        False, "with lora: alpha is divided by the root of the rank, not by the rank (rsLoRA)"
    )
    lora_dropout: float = option(
        0.0,
        "with lora: share of the adapters' inputs dropped in training, rounded to a multiple of 1/256, not to 0",
    )
    targets: str | None = option(
        None,
        "with lora: which dense layers get an adapter, the ends of their paths with commas between them, or `all`",
        otherwise=TARGETS,
    )
    adapter: bool = option(
        False, "with lora: write the adapters alone, as PEFT loads them, in place of the whole model"
    )
    columns: str | None = option(
        None,
        "of a table: the columns of the text, or of two texts, and of the label; for an embedder those of a text, its "
        "match and perhaps a wrong text (default: text,label; for an embedder text,match)",
    )
    epochs: int = option(3, "largest number of passes over the rows")
    batch_size: int = option(8, "number of rows in a batch")
    length: int | None = option(
        None,
        "largest number of tokens in a row (default: 512, or 128 for an encoder, if the model has so many)",
    )
    accumulation: int = option(1, "number of batches whose gradients make one update")
    learning_rate: float | None = option(
        None, "highest learning rate (default: 0.0002 with lora; 0.00005 for labels, else 0.00002)"
    )
    schedule: str = option(
        "linear", "how the learning rate falls to 0 with the last epoch", choices=("linear", "cosine")
    )
    warmup: float = option(0.1, "share of the updates until the highest learning rate, in [0, 1)")
    class_weights: bool = option(
        False, "of labels: the rarer a class, the more its rows count, so that each class counts the same"
    )
    weight_decay: float = option(
        0.01, "share of each weight that an update subtracts, times the learning rate"
    )
    clip_norm: float | None = option(1.0, "largest norm of the gradient of all weights together")
    hold_out: float = option(0.1, "share of the rows to validate with where there is no file for it")
    patience: int | None = option(
        None, "the tuning stops after so many epochs that were not better (default: never)"
    )
    precision: str = option(
        "float32",
        "number format of the training; int8 is that of the frozen kernels, and needs lora and adapter",
        choices=("float32", "mixed_bfloat16", "mixed_float16", "int8"),
    )
    checkpoint_steps: int | None = option(
        None, "number of steps between checkpoints within an epoch (default: none)"
    )
    samples: int = option(3, "number of rows whose answers are shown at the end")
    seed: int = option(1, "seed of the order of the rows, of new weights and of the dropout")

    def __post_init__(self):
        names = ("lora", "epochs", "batch_size", "length", "accumulation", "patience", "checkpoint_steps")
        values = {name: getattr(self, name) for name in names}
        check_positive(**{name: value for name, value in values.items() if value is not None})
        check_count(0, samples=self.samples, seed=self.seed)
        check_share(warmup=self.warmup, weight_decay=self.weight_decay, lora_dropout=self.lora_dropout)
        check_range(0, 1, above=True, hold_out=self.hold_out)
        values = {name: getattr(self, name) for name in ("alpha", "learning_rate", "clip_norm")}
        check_range(0, above=True, **{name: value for name, value in values.items() if value is not None})
        check_choices(self)
        for name in ("alpha", "adapter", "targets", "rank_stabilized", "lora_dropout"):
            rule = f"`{name}` needs `lora`."
            check(self.lora is not None or not getattr(self, name), rule, **{name: getattr(self, name)})
        fits = self.precision != "int8" or self.adapter
        check(fits, '`precision="int8"` needs `lora` and `adapter`.', adapter=self.adapter)
        fits = self.columns is None or 2 <= len(self.columns.split(",")) <= 3
        check(fits, "`columns` must name two columns, or three for pairs of texts.", columns=self.columns)

    def changes(self, earlier):
        """Lists the fields that differ from an earlier recipe, and must not differ in a resumed tuning.

        `patience`, `checkpoint_steps` and `samples` may differ.

        Args:
            earlier: The earlier recipe as `dataclasses.asdict` returns it. A field that it lacks has the default value.

        Returns:
            A list of str.
        """
        free = {"patience", "checkpoint_steps", "samples"}
        before = {field.name: earlier.get(field.name, field.default) for field in dataclasses.fields(self)}
        return [
            f"{name}: {before[name]!r}, now {value!r}"
            for name, value in dataclasses.asdict(self).items()
            if name not in free and before[name] != value
        ]


TuningRecipe.__doc__ = arguments_of_fields(TuningRecipe)
