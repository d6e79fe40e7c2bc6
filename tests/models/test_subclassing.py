"""Subclasses with a layer of their own: they train, write, save and load as the library's classes do."""

import functools

import keras
import numpy as np
import pytest
from contracts import STEP_IN_XLA, as_numpy, assert_close, config_of, randomized, slow_but

from keras_transformer.decoding import Greedy
from keras_transformer.layers import (
    Decoder,
    DecoderLayer,
    Embeddings,
    Encoder,
    EncoderLayer,
    MultiHeadAttention,
    PositionalEncoding,
)
from keras_transformer.losses import MaskedCrossentropy
from keras_transformer.models import LanguageModel, Transformer

VOCAB, D_MODEL, HEADS, D_FF = 13, 6, 3, 7
SOURCE = np.array([[5, 7, 12, 4, 3], [8, 4, 11, 3, 0], [6, 3, 0, 0, 0]], "int32")
TARGET = np.array([[2, 5, 9, 10], [2, 7, 3, 0], [2, 4, 6, 3]], "int32")


def made(*quick):
    """A test of layers made before and after `super().__init__()`; what is not in `quick` is slow."""
    return pytest.mark.parametrize("when", slow_but(quick, ("before", "after")))


def extended(base, when):
    """Returns a subclass with one more layer, made before or after `super().__init__()`."""

    class Extended(base):
        def __init__(self, *args, **kwargs):
            if when == "before":
                self.extra = keras.layers.Dense(D_MODEL, name="extra")
            super().__init__(*args, **kwargs)
            if when == "after":
                self.extra = keras.layers.Dense(D_MODEL, name="extra")

        def added(self, x):
            return x + self.extra(x)

    return Extended


def registered(cls, when):
    return keras.saving.register_keras_serializable("tests", f"{cls.__name__}_{when}")(cls)


def layer_class(base, when):
    """A layer that adds its own layer's output to its first input."""

    class WithExtra(extended(base, when)):
        @functools.wraps(base.call)  # Keras refuses tensors among `**kwargs` beside other values
        def call(self, x, *args, **kwargs):
            return super().call(self.added(x), *args, **kwargs)

    WithExtra.__name__ = f"My{base.__name__}"
    return registered(WithExtra, when)


LAYERS = {
    (base, when): layer_class(base, when)
    for base in (EncoderLayer, DecoderLayer, Decoder)
    for when in ("before", "after")
}


def attention_class(when):
    class MyAttention(extended(MultiHeadAttention, when)):
        @functools.wraps(MultiHeadAttention.call)
        def call(self, query, value, *args, **kwargs):
            return super().call(self.added(query), value, *args, **kwargs)

    return registered(MyAttention, when)


def transformer_class(when):
    class MyTransformer(extended(Transformer, when)):
        def encode(self, *args, **kwargs):
            memory = super().encode(*args, **kwargs)
            return memory._replace(states=self.added(memory.states))

    return registered(MyTransformer, when)


def language_model_class(when):
    class MyLanguageModel(extended(LanguageModel, when)):
        def hidden(self, *args, **kwargs):
            results = super().hidden(*args, **kwargs)
            x, *rest = results if isinstance(results, tuple) else [results]
            return (self.added(x), *rest) if rest else self.added(x)

    return registered(MyLanguageModel, when)


ATTENTIONS = {when: attention_class(when) for when in ("before", "after")}
TRANSFORMERS = {when: transformer_class(when) for when in ("before", "after")}
LANGUAGE_MODELS = {when: language_model_class(when) for when in ("before", "after")}


def embeddings():
    return Embeddings(VOCAB, D_MODEL, PositionalEncoding(), dropout=0.0)


def extra_weights(model):
    return {weight.path: as_numpy(weight) for weight in model.weights if "extra/" in weight.path}


def check(model, count, tmp_path):
    """Checks a fresh model with so many added layers."""
    is_language_model = isinstance(model, LanguageModel)
    inputs = TARGET if is_language_model else {"source": SOURCE, "target": TARGET}
    model.compile(keras.optimizers.SGD(1.0), MaskedCrossentropy(), jit_compile=STEP_IN_XLA)
    fresh = model.generate(SOURCE, Greedy(), 5, jit_compile=False)  # no call came before
    assert len(extra_weights(model)) == 2 * count
    randomized(model)
    before = extra_weights(model)
    model.fit(inputs, TARGET, verbose=0)
    for path, weight in extra_weights(model).items():
        assert np.abs(weight - before[path]).max() > 1e-6, path
    written = model.generate(SOURCE, Greedy(), 5, jit_compile=False)
    assert np.abs(as_numpy(written.scores) - as_numpy(fresh.scores)).max() > 1e-3
    eager = model.search(SOURCE, Greedy(), 5)
    assert_close(written.scores, eager.scores, 1e-4)
    assert_close(model.score(SOURCE, written.tokens, jit_compile=False).scores, written.scores, 1e-4)

    logits = model(inputs)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert type(again) is type(model)
    assert config_of(again) == config_of(model)
    assert again.compiled
    assert_close(again(inputs), logits, 1e-6)
    model.save_weights(tmp_path / "model.weights.h5")
    for weight in again.weights:
        weight.assign(0.0 * weight)
    again.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(
        as_numpy(again.generate(SOURCE, Greedy(), 5, jit_compile=False).tokens), as_numpy(written.tokens)
    )
    for weight in again.weights:
        if "extra/" in weight.path:
            weight.assign(0.0 * weight)
    assert np.abs(as_numpy(again(inputs)) - as_numpy(logits)).max() > 1e-3


@pytest.mark.slow
@made("after")
def test_transformer_with_a_layer_of_the_user(when, tmp_path):
    model = TRANSFORMERS[when](VOCAB, num_layers=1, d_model=D_MODEL, num_heads=HEADS, d_ff=D_FF, dropout=0.0)
    check(model, 1, tmp_path)


@made("before")
@pytest.mark.slow
def test_language_model_with_attention_and_layers_of_the_user(when, tmp_path):
    layer = LAYERS[DecoderLayer, when](
        attention=ATTENTIONS[when](HEADS, 2, name="self_attention"), d_ff=D_FF, dropout=0.0
    )
    model = LANGUAGE_MODELS[when](embeddings(), Decoder([layer]))
    check(model, 3, tmp_path)


@made()
def test_model_with_stacks_and_layers_of_the_user(when, tmp_path):
    from keras_transformer.models import EncoderDecoder

    layer = LAYERS[EncoderLayer, when](
        attention=ATTENTIONS[when](HEADS, 2, name="self_attention"), d_ff=D_FF, dropout=0.0
    )
    decoder = LAYERS[Decoder, when](1, HEADS, D_FF, dropout=0.0)
    shared = embeddings()
    model = EncoderDecoder(shared, Encoder([layer]), shared, decoder)
    check(model, 3, tmp_path)
