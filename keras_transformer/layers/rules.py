"""The rules of arguments: one for each name, wherever a constructor of this package has it."""

import functools
import inspect
from types import MappingProxyType

from keras_transformer.checks import check_count, check_positive, check_range, check_share

_SHARES = ("dropout", "attention_dropout", "activation_dropout", "stochastic_depth")
_SIZES = (
    "vocab_size", "source_vocab_size", "target_vocab_size", "input_dim", "output_dim", "d_model", "embedding_dim",
    "num_layers", "num_decoder_layers", "num_heads", "num_key_value_heads", "key_dim", "value_dim", "d_ff", "width",
    "units", "max_length", "num_segments", "num_separators", "num_buckets", "max_distance", "num_classes", "channels",
)  # fmt: skip
_NOT_NEGATIVE = ("layer_norm_epsilon", "norm_epsilon", "balance")
_ABOVE_0 = ("scale", "soft_cap", "logit_soft_cap", "max_wavelength")
RULES = MappingProxyType(
    {
        **dict.fromkeys(_SHARES, check_share),
        **dict.fromkeys(_SIZES, check_positive),
        **dict.fromkeys(_NOT_NEGATIVE, functools.partial(check_range, 0)),
        **dict.fromkeys(_ABOVE_0, functools.partial(check_range, 0, above=True)),
        "offset": functools.partial(check_count, 0),
    }
)


def keeping_rules(init, rules):
    """Returns a constructor that first checks its arguments by their names. None passes where it is the default.

    An error about one of several arguments without names says what they are.
    """
    signature = inspect.signature(init)
    ruled = {
        name: parameter.default
        for name, parameter in signature.parameters.items()
        if name in rules and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }
    positional = [
        each.name for each in signature.parameters.values() if each.kind is each.POSITIONAL_OR_KEYWORD
    ]

    @functools.wraps(init)
    def __init__(self, *args, **kwargs):
        try:
            arguments = signature.bind_partial(self, *args, **kwargs).arguments
        except TypeError:
            # Python's own message for the call names the class.
            arguments = {}
        for name, default in ruled.items():
            if name in arguments and not (arguments[name] is None and default is None):
                try:
                    rules[name](**{name: arguments[name]})
                except ValueError as error:
                    unnamed = positional[1 : 1 + len(args)]
                    if name not in unnamed[1:]:
                        raise
                    call = f"{type(self).__name__}({', '.join(unnamed)})"
                    raise ValueError(f"{error} Without names the arguments are `{call}`.") from None
        init(self, *args, **kwargs)

    # Keras does not follow `functools.wraps`.
    __init__.__signature__ = signature
    return __init__ if ruled else init


def check_layers(num_layers):
    """Raises `ValueError` unless it is a list of layers or a number of them."""
    if not isinstance(num_layers, (list, tuple)):
        check_positive(num_layers=num_layers)
