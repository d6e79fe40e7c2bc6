"""What each family of checkpoints declares."""

import contextlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from keras_transformer.checks import check
from keras_transformer.huggingface.configs import value_at, written_rows
from keras_transformer.huggingface.files import CONFIG
from keras_transformer.huggingface.generation import KNOWN as SEARCH
from keras_transformer.huggingface.generation import REFUSED
from keras_transformer.huggingface.known_keys import CONFIG as KNOWN
from keras_transformer.huggingface.tokenizers.kinds import TokenizerKind
from keras_transformer.keras_internals import without_memory
from keras_transformer.layers import Embeddings, TokenEmbedding
from keras_transformer.layers.numbers import first_difference, numbers

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Family:
    """How the checkpoints of one `model_type` become models, and models become checkpoints.

    Each module of this package that describes a family ends with its `FAMILY`, an object of a class like this.

    Attributes:
        model_type: The family's `model_type` in config.json, a str.
        classes: Names of the classes of transformers that the family reads. The first one is what a config.json without
            `architectures` means. A family whose classes have different heads has a dict, with a description of each.
        tokenizer: The `TokenizerKind` of its tokenizers; None where the models read no text.
        prefix: Beginning of the tensors' names that a checkpoint may leave out.
        rows: The table of the arguments of a model and of its parts, as `configs.read_rows` takes it.
        places: Where a model has these arguments, as `configs.written_rows` takes it.
        ignored: Compiled patterns of the names of stored tensors that are not weights.
        renamed: A dict from the end of a tensor's name in old checkpoints to its end now.
        guessed_keys: Keys of config.json that `make_config` guesses, because the model does not know them. The user of
            `to_huggingface` may give other values.
        writes_tables: Whether the tables of `make_tables` are written too, with `max_position_embeddings` rows.
        matrices: Names of layers with matrices that `quantized.NAMES` does not have.
        more_keys: Keys of config.json that the family knows, in addition to those of `known_keys`.
        model_classes: The classes of its models, a tuple. A subclass of them may compute something else.
    """

    model_type: str
    classes: Iterable
    tokenizer: TokenizerKind | None = None
    prefix: str = ""
    ignored: tuple = ()
    renamed: dict = field(default_factory=dict)
    guessed_keys: tuple = ()
    writes_tables: bool = False
    matrices: tuple = ()
    more_keys: tuple = ()
    model_classes: tuple = ()
    rows: dict = field(default_factory=dict)
    places: dict = field(default_factory=dict)

    @property
    def architectures(self):
        """Names of the classes of transformers that the family reads, a tuple of str."""
        return tuple(self.classes)

    @property
    def known_keys(self):
        """The keys of config.json that are read or have no effect, a set of str."""
        return {*KNOWN, *self.defaults, *self.more_keys}

    @property
    def defaults(self):
        """transformers' value of each key of config.json that has one, a dict."""
        return {key: default for key, default in self.rows.values() if key is not None}

    def variant(self, config, makes_vectors=False):
        """Returns the family as it reads a config.json.

        Args:
            config: A dict.
            makes_vectors: Whether the folder says that the model makes vectors.
        """
        return self

    def check_classes(self, config):
        """Raises `ValueError` where `architectures` of config.json names a class that the family does not read."""
        names, classes = config.get("architectures") or None, self.architectures
        check(
            names is None or (len(names) == 1 and names[0] in classes),
            f"`architectures` of config.json must be one of {list(classes)}.",
            architectures=names,
        )

    def make_model(self, config, **kwargs):
        """Makes a model with fresh weights from a config.json.

        Args:
            config: A dict.
            **kwargs: The arguments of the model that its caller decides.

        Raises:
            ValueError: If a key asks for something that the library does not have.
        """
        raise NotImplementedError

    def make_config(self, model):
        """Makes the config.json of a model, a dict.

        It is read again, and the model that it makes is compared with the given one. So no option of a part is lost
        that config.json cannot express.

        Of a model that was read it also has the keys of that config.json which the model does not know. A warning names
        them where they would make another model now.

        Raises:
            ValueError: If the family cannot describe the model. The message has the path of the first option that is
                another one.
        """
        own = self.own_keys(model)
        known = {*self.known_keys, *SEARCH, *REFUSED}
        read = {key: value for key, value in model.checkpoint_files.get(CONFIG, {}).items() if key in known}
        config = {**read, **own, **{key: read[key] for key in self._guesses(model, own) if key in read}}
        with contextlib.suppress(ValueError):
            if config != own and self._difference(config, model) is None:
                return config
        difference = self._difference(own, model)
        if difference is not None:
            path, received, expected = difference
            name = f"`{expected.__name__}`" if callable(expected) else repr(expected)
            expected = f"a {name}" if isinstance(expected, type) else name
            received = value_at(model, path) if isinstance(received, type) else received
            rule = f"`{path}` of a {self.model_type!r} model must be {expected}."
            check(False, rule, **{path.rpartition(".")[2]: received})
        lost = sorted(key for key in config if key not in own or own[key] != config[key])
        if lost:
            log.warning("config.json loses the keys %s: with them it would be of another model", lost)
        return own

    def own_keys(self, model):
        """Returns the keys of config.json that a model decides, and the `guessed_keys`, a dict."""
        return {
            "model_type": self.model_type,
            "architectures": list(self.architectures[:1]),
            **written_rows(self.model_type, model, self.rows, self.places),
            **self.other_keys(model),
        }

    def _guesses(self, model, own):
        """Returns the keys that take what was read: `guessed_keys`, and ids in whose place the model has `eos_id`."""
        eos_id, read = getattr(model, "eos_id", None), model.checkpoint_files.get(CONFIG, {})
        ids = {"pad_token_id": model.pad_id, "bos_token_id": model.bos_id} if eos_id is not None else {}
        same = (key for key in own if ids.get(key, ...) == eos_id and read.get(key) in (None, -1, eos_id))
        return (*(key for key in self.guessed_keys if key in own), *same)

    def _difference(self, config, model):
        """Returns the first difference of a model from the one that a config.json makes, as `first_difference` does."""
        with without_memory(initialize=False):
            made = self.make_again(config, model)
        return first_difference(numbers(self.numbers_of(model)), numbers(made.numbers()))

    def numbers_of(self, model):
        """Returns what decides the numbers of a model that config.json describes, a dict."""
        return model.numbers()

    def other_keys(self, model):
        """Returns the keys of config.json that `rows` do not write, a dict."""
        return {}

    def make_again(self, config, model):
        """Makes a model from the config.json that was made of another one."""
        return self.make_model(config)

    def make_tensors(self, model):
        """Describes each tensor of a model's checkpoint, a `tensors.Tensor`."""
        raise NotImplementedError

    def arguments_of_tensors(self, config, names):
        """Returns the arguments of the model that only the stored tensors tell, a dict.

        Args:
            config: A dict.
            names: The names of the stored tensors, a set of str.
        """
        return {}

    def make_tables(self, model):
        """Gives a `ComputedTable` for each tensor that a checkpoint may hold and the model computes."""
        return ()


# Where a language model has what `tokens_in_and_out` makes.
TOKEN_PLACES = {
    "tie_embeddings": lambda model: model.output_embedding is model.embeddings.tokens,
    "logit_soft_cap": "output_embedding.soft_cap",
}


def tokens_in_and_out(arguments, dtype, **options):
    """Makes what a language model reads with and writes with.

    Args:
        arguments: A dict of `vocab_size`, `d_model` and `tie_embeddings`.
        dtype: The dtype of both.
        **options: The other arguments of the `Embeddings`; `logit_soft_cap` is that of the output too.

    Returns:
        A dict of the model's arguments `embeddings` and `output`.
    """
    sizes = arguments["vocab_size"], arguments["d_model"]
    output, cap = None, options.get("logit_soft_cap")
    if not arguments["tie_embeddings"]:
        output = TokenEmbedding(*sizes, logit_soft_cap=cap, dtype=dtype, name="output_embedding")
    return {"embeddings": Embeddings(*sizes, **options, dtype=dtype, name="embeddings"), "output": output}
