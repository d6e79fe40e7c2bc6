"""What each family of checkpoints declares."""

from collections.abc import Callable
from dataclasses import dataclass, field

from keras_transformer.huggingface.tokenizers import TokenizerKind


def _unchanged(config, tensor_names):
    return config


def _no_tables(model):
    return ()


@dataclass(frozen=True)
class Family:
    """How the checkpoints of one `model_type` become models, and models become checkpoints.

    Each module of this package that describes a family ends with its `FAMILY`, an object of this class.

    Attributes:
        model_type: The family's `model_type` in config.json, a str.
        make_model: `make_model(config, **kwargs)` makes a model with fresh weights from a config.json, a dict. It
            raises `ValueError` for a key that asks for something the library does not have.
        make_config: `make_config(model)` makes the config.json of a model, a dict. It raises `ValueError` for a model
            that the family cannot describe.
        make_tensors: `make_tensors(model)` gives a `Tensor` for each tensor of the checkpoint.
        architectures: Classes of transformers that the family reads, a tuple of str.
        prefix: Beginning of the tensors' names that a checkpoint may leave out.
        ignored: Compiled patterns of the names of stored tensors that are no weights.
        renamed: A dict from the end of a tensor's name in old checkpoints to its end now.
        guessed_keys: Keys of config.json that `make_config` guesses, because the model does not know them. The user of
            `to_huggingface` may give other values.
        complete_config: `complete_config(config, tensor_names)` adds to config.json what only the names of the stored
            tensors tell.
        make_tables: `make_tables(model)` gives a `ComputedTable` for each tensor that a checkpoint may hold and the
            model computes.
        writes_tables: Whether these tables are written too, with `max_position_embeddings` rows.
        matrices: Names of layers with matrices that `quantized.NAMES` does not have.
        tokenizer: The `TokenizerKind` of its tokenizers; None where the models read no text.
    """

    model_type: str
    make_model: Callable
    make_config: Callable
    make_tensors: Callable
    architectures: tuple = ()
    prefix: str = ""
    ignored: tuple = ()
    renamed: dict = field(default_factory=dict)
    guessed_keys: tuple = ()
    complete_config: Callable = _unchanged
    make_tables: Callable = _no_tables
    writes_tables: bool = False
    matrices: tuple = ()
    tokenizer: TokenizerKind | None = None
