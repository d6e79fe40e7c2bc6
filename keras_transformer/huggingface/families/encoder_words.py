"""The words of encoders' checkpoints: BERT's keys of config.json, and the names of heads."""

from types import MappingProxyType
from typing import NamedTuple

from keras_transformer.huggingface.configs import keys_and_defaults
from keras_transformer.huggingface.tensors import LayerNames

# This library's words for the keys of config.json, BERT's keys, and transformers' values of these.
KEYS, DEFAULTS = keys_and_defaults(
    vocab_size=("vocab_size", 30522),
    d_model=("hidden_size", 768),
    num_layers=("num_hidden_layers", 12),
    num_heads=("num_attention_heads", 12),
    d_ff=("intermediate_size", 3072),
    activation=("hidden_act", "gelu"),
    dropout=("hidden_dropout_prob", 0.1),
    attention_dropout=("attention_probs_dropout_prob", 0.1),
    positions=("max_position_embeddings", 512),
    num_segments=("type_vocab_size", 2),
    layer_norm_epsilon=("layer_norm_eps", 1e-12),
)
DEFAULTS["pad_token_id"] = 0
# The names of the tensors of BERT's layers.
LAYER = LayerNames(
    tuple(f"attention.{name}" for name in ("self.query", "self.key", "self.value", "output.dense")),
    ("attention.output.LayerNorm", "output.LayerNorm"),
    ("intermediate.dense",),
    "output.dense",
)
# Those of them for the arguments of an `Encoder`.
STACK = (
    "num_layers",
    "num_heads",
    "d_ff",
    "activation",
    "dropout",
    "attention_dropout",
    "layer_norm_epsilon",
)


class HeadNames(NamedTuple):
    """One class of transformers: the head that it has, and the names of the head's tensors.

    kind: Class of the head; `NoneType` for the states alone.
    dense: Beginning of the names of the last dense layer's tensors, or of the layer before the scores of ids.
    pooler: Beginning of the names of the pooler's tensors; None for a model without a pooler.
    pooler_activation: Name of the pooler's activation.
    pooler_drops: Whether the pooler's input is dropped too, with the head's share.
    dropout: Keys of config.json for the head's dropout; the first one that is there counts. None for no dropout.
    keys: Arguments of the pooler, or of the head for words, that config.json has keys for, with these keys.
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
    keys: dict = MappingProxyType({})
