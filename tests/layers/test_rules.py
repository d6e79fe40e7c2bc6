"""A rule for each argument, in every class of the library: `layers.rules.RULES`."""

import functools
import importlib
import inspect
import pkgutil

import keras
import pytest

import keras_transformer
from keras_transformer.layers import Decoder, DecoderLayer, Embeddings, Encoder, EncoderLayer, FeedForward
from keras_transformer.layers.base import Configured
from keras_transformer.layers.rules import RULES
from keras_transformer.models import ProjectedPooler, Transformer


def configured_classes(base=Configured):
    """Yields every class of the library whose arguments are recorded."""
    for package in ("layers", "models"):
        for module in pkgutil.iter_modules(getattr(keras_transformer, package).__path__):
            importlib.import_module(f"keras_transformer.{package}.{module.name}")
    for kind in base.__subclasses__():
        if kind.__module__.startswith("keras_transformer."):
            yield kind
        yield from configured_classes(kind)


RULED = {
    (kind, name)
    for kind in configured_classes()
    if "__init__" in vars(kind)
    for name in inspect.signature(kind.__init__).parameters
    if name in kind.rules
}


def test_the_rules_cover_many_arguments_and_no_other_name():
    assert len(RULED) > 60
    assert RULES.keys() == {name for _, name in RULED}


def test_each_class_refuses_a_wrong_value_of_each_ruled_argument():
    accepted = []
    for kind, name in RULED:
        wrong = [-1] if (kind, name) == (ProjectedPooler, "units") else -1
        try:
            kind(**{name: wrong})
        except ValueError as error:
            assert str(error).startswith(f"`{name}` must be ") and str(error).endswith(f"{name}=-1.")
        else:
            accepted.append((kind.__name__, name))
    assert accepted == []


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Encoder(0, 2, 8), "`num_layers` must be a positive integer. Received: num_layers=0."),
        (lambda: FeedForward(2.5), "`d_ff` must be a positive integer. Received: d_ff=2.5."),
        (lambda: FeedForward(8, dropout=1.0), "`dropout` must be in [0, 1). Received: dropout=1.0."),
        (lambda: FeedForward(None), "`d_ff` must be a positive integer. Received: d_ff=None."),
        (lambda: Transformer(11, d_model=0), "`d_model` must be a positive integer. Received: d_model=0."),
        (
            lambda: DecoderLayer(32, 2, 32),
            "`dropout` must be in [0, 1). Received: dropout=32. Without names the arguments are "
            "`DecoderLayer(num_heads, d_ff, dropout)`.",
        ),
    ],
    ids=["zero layers", "a fraction", "all dropped", "None without a default", "a model", "other order"],
)
def test_a_wrong_value_is_named(make, message):
    with pytest.raises(ValueError) as caught:
        make()
    assert str(caught.value) == message


def test_python_names_the_class_of_a_call_with_too_many_arguments():
    with pytest.raises(TypeError, match=r"Encoder\.__init__\(\) takes from 2 to 4 positional arguments"):
        Encoder(2, 32, 2, 32)


@pytest.mark.parametrize("make", [
    functools.partial(Encoder, 1, 2, 8), functools.partial(Decoder, 1, 2, 8), functools.partial(EncoderLayer, 2, 8),
    functools.partial(Embeddings, 11, 8), functools.partial(Transformer, 11),
])  # fmt: skip
def test_an_unknown_argument_is_refused_in_the_name_of_the_class_that_was_called(make):
    with pytest.raises(ValueError, match=f"passed to {make.func.__name__}[.:].*tie_embeddings"):
        make(tie_embeddings=False)


class _PercentLayer(EncoderLayer):
    """A layer in which `dropout` has another meaning."""

    def __init__(self, num_heads, d_ff, dropout, **kwargs):
        super().__init__(num_heads, d_ff, dropout=dropout / 100, **kwargs)


def test_a_subclass_gives_a_name_another_meaning():
    assert _PercentLayer(2, 8, dropout=30).dropout == 0.3


def test_what_a_subclass_passes_on_keeps_the_rules():
    with pytest.raises(ValueError, match=r"`dropout` must be in \[0, 1\)\. Received: dropout=2\.0"):
        _PercentLayer(2, 8, dropout=200)


class _OwnRule(keras.layers.Layer):
    """A layer of another library."""

    def __init__(self, d_model, **kwargs):
        super().__init__(**kwargs)


def test_layers_of_others_have_their_own_rules():
    assert _OwnRule(d_model=-1) is not None
