"""The heads of encoders in the classes of transformers."""

from types import MappingProxyType
from typing import NamedTuple


class HeadNames(NamedTuple):
    """One class of transformers: the head that it has, and the names of the head's tensors.

    kind: Class of the head; `NoneType` for the states alone.
    dense: Beginning of the names of the last dense layer's tensors, or of the layer before the scores of ids.
    pooler: Beginning of the names of the pooler's tensors; None for a model without a pooler.
    pooler_activation: Name of the pooler's activation.
    pooler_drops: Whether the pooler's input is dropped too, with the head's share.
    dropout: Keys of config.json for the head's dropout; the first one that is there counts. None for no dropout.
    rows: The table of the arguments of the pooler, or of a `MaskedLanguageHead`, that config.json has.
    norm: Beginning of the names of the tensors of the norm before the scores of ids, or after the pooler.
    biases: Names of the bias of the scores, which may be stored several times.
    output: Name of the matrix of the scores, which is the embedding's.
    activation: Name of the activation before the scores; None for that of config.json.
    """

    kind: type = type(None)
    dense: str = ""
    pooler: str | None = None
    pooler_activation: str = "tanh"
    pooler_drops: bool = False
    dropout: tuple | None = None
    norm: str = ""
    biases: tuple = ()
    output: str = ""
    activation: str | None = None
    rows: dict = MappingProxyType({})
