"""The recipe of a training run: every hyper-parameter. Reading it imports no Keras, so that `--help` is quick."""

import dataclasses

from keras_transformer.checks import check, check_positive, check_range, check_share

KINDS = ("unigram", "bpe", "byte")
# The fields that say how vocabularies are made.
VOCABULARY = ("vocab_size", "character_coverage", "vocab_sample", "separate_vocabularies", "keep")
RATES = ("dropout", "attention_dropout", "activation_dropout")
# The fields that say which model is made.
MODEL = ("num_layers", "d_model", "num_heads", "d_ff", *RATES, "activation", "normalize_first", "norm")
# The fields that `planned` fills in from the number of updates.
PLANNED = ("epochs", "warmup_steps")
ENOUGH_UPDATES = 6000
FEWEST_EPOCHS, MOST_EPOCHS = 20, 100
# "Attention Is All You Need", section 5.3.
LONGEST_WARMUP = 4000


def option(default, explanation, **metadata):
    """Returns the field of a recipe, with the sentence that `--help` and the docstring have."""
    return dataclasses.field(default=default, metadata={"help": explanation, **metadata})


def check_choices(recipe):
    """Raises `ValueError` for a field that has none of its choices."""
    for field in dataclasses.fields(recipe):
        choices, value = field.metadata.get("choices"), getattr(recipe, field.name)
        if choices and value is not None and value not in choices:
            raise ValueError(f"`{field.name}` must be one of {choices}. Received: {field.name}={value!r}.")


def arguments_of_fields(recipe_class):
    """Returns the docstring of a recipe with the list of its arguments, so that it and `--help` have one source."""
    fields = dataclasses.fields(recipe_class)
    listed = "".join(f"        {field.name}: {field.metadata['help']}.\n" for field in fields)
    return f"{recipe_class.__doc__.rstrip()}\n\n    Args:\n{listed}"


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Every hyper-parameter of a run: of the model, of the tokenizers and of the training.

    A field that is None takes its usual value, that of the preset or of "Attention Is All You Need", or switches its
    feature off. With `init_from`, a field of the model or of the tokenizers that is None takes their value.
    `keras-transformer train` has one option for each field, and its `--help` explains each as the list below does.

    >>> recipe = Recipe(preset="base", epochs=5)
    >>> recipe.epochs, recipe.batch_tokens
    (5, 4096)

    Raises:
        ValueError: If a value is out of its range, or two fields contradict each other.
    """

    preset: str | None = option(
        None,
        "model size; the sizes below override single values of it",
        otherwise="tiny",
        choices=("tiny", "base", "big"),
    )
    num_layers: int | None = option(None, "number of encoder layers, and of decoder layers")
    d_model: int | None = option(None, "width of the model")
    num_heads: int | None = option(None, "number of attention heads")
    d_ff: int | None = option(None, "inner width of the feed-forward networks")
    dropout: float | None = option(None, "dropout rate in training, in [0, 1)")
    attention_dropout: float | None = option(
        None, "dropout rate of the attention weights in training, in [0, 1)", otherwise=0.0
    )
    activation_dropout: float | None = option(
        None, "dropout rate inside the feed-forward networks in training, in [0, 1)", otherwise=0.0
    )
    activation: str | None = option(None, "activation of the feed-forward networks", otherwise="relu")
    normalize_first: bool | None = option(None, "pre-norm instead of the paper's post-norm", otherwise=False)
    norm: str | None = option(
        None,
        "layer normalisation or root-mean-square normalisation",
        otherwise="layer",
        choices=("layer", "rms"),
    )
    tokenizer: str | None = option(
        None,
        "kind of subwords, unigram, bpe or byte; or a SentencePiece model or a folder whose tokenizers are used",
        otherwise="unigram",
    )
    vocab_size: int | None = option(
        None, "largest number of ids in each vocabulary; a small corpus gets fewer", otherwise=8000
    )
    character_coverage: float | None = option(
        None, "share of the characters in the text that get an id, in [0.98, 1]", otherwise=0.9995
    )
    vocab_sample: int | None = option(
        None,
        "number of sentence pairs, drawn evenly, that the vocabularies are made from; all if there are fewer",
        otherwise=100_000,
    )
    separate_vocabularies: bool | None = option(
        None, "one vocabulary for each side instead of a shared one", otherwise=False
    )
    keep: str | None = option(
        None,
        "regular expression; each different match in the pairs, such as {name}, gets one id and is never split "
        "(default: none)",
    )
    init_from: str | None = option(
        None,
        "folder of a run, a saved translator or a converted checkpoint; training goes on with its model and its "
        "tokenizers. Leave out the options above, or give its values; a Transformer takes other rates of dropout. With "
        "a file or a folder as `tokenizer`, the model keeps its rows for the pieces that it knows and gets new ones "
        "(default: none)",
        is_path=True,
    )
    lora: int | None = option(
        None,
        "with init_from: freeze the model, and train only LoRA's adapters of this rank in its dense layers; the "
        "translator has them added to the kernels (default: none)",
    )
    epochs: int | None = option(
        None,
        "number of passes over the pairs; a larger number continues a finished run (default: as many as give "
        f"{ENOUGH_UPDATES} updates, from {FEWEST_EPOCHS} to {MOST_EPOCHS}; {FEWEST_EPOCHS} with init_from)",
    )
    batch_tokens: int = option(
        4096,
        "largest size of a batch: its rows times its longer side in tokens, padding included; few pairs make smaller "
        "ones",
    )
    max_length: int = option(128, "longest side of a training pair, in tokens")
    too_long: str = option(
        "skip", "how to treat pairs that are longer than max_length", choices=("skip", "truncate", "error")
    )
    learning_rate: float | None = option(
        None,
        "highest learning rate, reached after the warm-up (default: the paper's, computed from d_model and the "
        "warm-up, but not above that of a warm-up of 1000 steps)",
    )
    schedule: str = option(
        "inverse_sqrt",
        "how the learning rate falls; linear and cosine reach 0 with the last epoch",
        choices=("inverse_sqrt", "linear", "cosine"),
    )
    warmup_steps: int | None = option(
        None,
        "number of updates until the highest learning rate (default: a quarter of all, "
        f"{LONGEST_WARMUP} at most)",
    )
    optimizer: str = option(
        "adam",
        "the paper's Adam, Adam with weight decay, or Muon for the kernels and Adam for the other weights",
        choices=("adam", "adamw", "muon"),
    )
    adam_epsilon: float = option(1e-9, "epsilon of Adam")
    weight_decay: float = option(
        0.01,
        "weight decay of adamw, and of muon's kernels: the share of each weight that a step subtracts, times the "
        "learning rate",
    )
    clip_norm: float | None = option(
        None, "largest norm of the gradient of all weights together (default: no limit)"
    )
    accumulation: int = option(
        1,
        "number of batches whose gradients make one update: the mean of the batches' means, so a small batch weighs as "
        "much as a large one",
    )
    ema: float | None = option(
        None,
        "momentum of a moving average of the weights; validation and the translator then use the average "
        "(default: none)",
    )
    average_last: int = option(
        1, "number of last epochs whose mean weights the final translator gets; 1 for no mean"
    )
    patience: int | None = option(
        None,
        "training stops after so many epochs without a better validation perplexity; needs validation pairs "
        "(default: never)",
    )
    subword_sampling: float | None = option(
        None,
        "draw new segmentations in each epoch: for unigram the smoothing, for bpe the share of merges that are left "
        "out (default: none)",
    )
    label_smoothing: float = option(0.1, "share of probability spread over the vocabulary, in [0, 1)")
    r_drop: float = option(
        0.0,
        "weight of R-Drop: each batch is computed twice, with two dropouts, and the divergence of the two is part of "
        "the loss; 0 for none, 5 in the paper",
    )
    precision: str = option(
        "float32",
        "number format of the training; the saved model is always float32",
        choices=("float32", "mixed_bfloat16", "mixed_float16"),
    )
    xla: bool | None = option(
        None,
        "compile the training step with XLA, once for each batch shape (default: only on an accelerator)",
    )
    checkpoint_steps: int | None = option(
        None, "number of steps between checkpoints within an epoch (default: none)"
    )
    seed: int = option(1, "seed of the initial weights, the order of the pairs and the dropout")

    def __post_init__(self):
        check_positive(
            **self.given(
                "epochs",
                "vocab_sample",
                "warmup_steps",
                "accumulation",
                "average_last",
                "patience",
                "checkpoint_steps",
                "lora",
            )
        )
        check(self.lora is None or self.init_from is not None, "`lora` needs `init_from`.", lora=self.lora)
        rule = "`ema` averages all weights: give `lora` or `ema`, not both."
        check(self.lora is None or self.ema is None, rule, lora=self.lora, ema=self.ema)
        check_share(
            **self.given(
                "attention_dropout", "activation_dropout", "label_smoothing", "weight_decay", "dropout", "ema"
            )
        )
        check_range(0, r_drop=self.r_drop)
        check_range(0, above=True, **self.given("adam_epsilon", "clip_norm", "learning_rate"))
        check_choices(self)
        check_range(0.98, 1, **self.given("character_coverage"))
        self._check_tokenizer()
        last = self.average_last
        rule = "`ema` and `average_last` both average the weights. Give only one of them."
        check(self.ema is None or last <= 1, rule, ema=self.ema, average_last=last)
        rule = "`average_last` must be at most `epochs`."
        check(self.epochs is None or last <= self.epochs, rule, average_last=last, epochs=self.epochs)
        if self.subword_sampling is not None:
            check_range(0, 1, above=True, subword_sampling=self.subword_sampling)
            rule = "`subword_sampling` needs a tokenizer of subwords."
            check(self.tokenizer != "byte", rule, tokenizer=self.tokenizer)
        rule = "`keep` needs a tokenizer of subwords."
        check(self.keep is None or self.tokenizer != "byte", rule, keep=self.keep)

    def _check_tokenizer(self):
        """Raises `ValueError` if the fields that say which tokenizers are used contradict one another."""
        rule = "`{0}` must be left out with `init_from`, whose tokenizers are used."
        for name in VOCABULARY if self.init_from is not None else ():
            check(getattr(self, name) is None, rule.format(name), **{name: getattr(self, name)})
        rule = "`tokenizer` must be a file or a folder with `init_from`, or be left out."
        fits = self.init_from is None or self.tokenizer is None or self.has_own_tokenizers
        check(fits, rule, tokenizer=self.tokenizer)
        rule = (
            "`lora` would not train the new ids of `tokenizer`: give `lora` or `tokenizer` with `init_from`."
        )
        fits = self.lora is None or self.init_from is None or self.tokenizer is None
        check(fits, rule, lora=self.lora, tokenizer=self.tokenizer)
        rule = "`{0}` must be left out where `tokenizer` is a file or a folder: no vocabulary is made."
        for name in VOCABULARY if self.has_own_tokenizers else ():
            check(getattr(self, name) is None, rule.format(name), **{name: getattr(self, name)})

    def given(self, *names):
        """Returns these fields as a dict, without the optional ones that are None."""
        optional = {field.name for field in dataclasses.fields(self) if field.default is None}
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None or name not in optional}

    def updates(self, steps):
        """Returns the number of updates of the weights in a training of `steps` batches an epoch."""
        return self.epochs * steps // self.accumulation

    def planned(self, steps):
        """Returns the recipe with numbers in place of None for `epochs` and `warmup_steps`.

        Args:
            steps: The number of batches in an epoch.

        >>> recipe = Recipe().planned(steps=121)
        >>> recipe.epochs, recipe.warmup_steps
        (50, 1512)
        """
        epochs = self.epochs
        if epochs is None:
            # A model that is trained already needs fewer updates.
            wanted = 0 if self.init_from is not None else -(-ENOUGH_UPDATES * self.accumulation // steps)
            epochs = min(max(FEWEST_EPOCHS, wanted), MOST_EPOCHS)
        planned = dataclasses.replace(self, epochs=epochs)
        if self.warmup_steps is None:
            warmup = min(LONGEST_WARMUP, max(1, planned.updates(steps) // 4))
            planned = dataclasses.replace(planned, warmup_steps=warmup)
        return planned

    @property
    def has_own_tokenizers(self):
        """Whether `tokenizer` is a file or a folder."""
        return self.tokenizer is not None and self.tokenizer not in KINDS

    def resolved(self):
        """Returns the recipe with its usual values in place of None; with `init_from` the recipe itself."""
        if self.init_from is not None:
            return self
        usual = {
            field.name: field.metadata["otherwise"]
            for field in dataclasses.fields(self)
            if "otherwise" in field.metadata and getattr(self, field.name) is None
        }
        if self.has_own_tokenizers:
            usual = {name: value for name, value in usual.items() if name not in VOCABULARY}
        return dataclasses.replace(self, **usual)

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
        fields = dataclasses.fields(self)
        free = {"checkpoint_steps", "patience", "average_last"}
        if self.schedule == "inverse_sqrt":
            free.add("epochs")
        before = type(self)(**{field.name: earlier[field.name] for field in fields if field.name in earlier})
        before, now = before.resolved(), self.resolved()

        def used(recipe, name):
            value = getattr(recipe, name)
            if value is not None or name not in MODEL:
                return value
            from keras_transformer.models.transformer import PRESETS

            return PRESETS.get(recipe.preset, {}).get(name)

        def shown(recipe, name):
            value = used(recipe, name)
            if name not in MODEL or getattr(recipe, name) is not None:
                return repr(value)
            return "that of init_from" if value is None else f"{value} (preset {recipe.preset})"

        return [
            f"{field.name}: {shown(before, field.name)}, now {shown(now, field.name)}"
            for field in fields
            if field.name not in free and used(before, field.name) != used(now, field.name)
        ]


Recipe.__doc__ = arguments_of_fields(Recipe)
