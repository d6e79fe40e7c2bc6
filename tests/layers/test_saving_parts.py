"""What a file keeps of the sublayers that a layer makes: added, frozen, quantized and shared ones."""

import keras
import numpy as np
import pytest
from contracts import as_numpy, normal, refuses

from keras_transformer.layers import (
    Decoder,
    Embeddings,
    Encoder,
    EncoderLayer,
    FeedForward,
    LayerNormalization,
)
from keras_transformer.models import EncoderDecoder, LanguageModel

IDS = np.array([[5, 7, 3]])


@keras.saving.register_keras_serializable("test_saving_parts")
class Widened(EncoderLayer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.extra = keras.layers.Dense(4)

    def call(self, x, padding_mask=None, attention_mask=None, training=None, return_attention_scores=False):
        return super().call(self.extra(x), padding_mask, attention_mask, training, return_attention_scores)


@keras.saving.register_keras_serializable("test_saving_parts")
class Renamed(FeedForward):
    """Its `call` names the input as Keras's layers do."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.extra = keras.layers.Dense(4)

    def call(self, inputs, training=None):
        return super().call(self.extra(inputs), training=training)


@keras.saving.register_keras_serializable("test_saving_parts")
class Doubled(FeedForward):
    """What it is given without a name is not what it hands on."""

    def __init__(self, *args, **kwargs):
        super().__init__(*(2 * size for size in args), **kwargs)


def reloaded(model, path):
    model.save(path / "model.keras")
    return keras.models.load_model(path / "model.keras")


@pytest.mark.parametrize(
    "make",
    [lambda: Widened(2, 8), lambda: Renamed(8), lambda: Doubled(8)],
    ids=["encoder", "feed_forward", "doubled"],
)
def test_a_functional_model_with_a_layer_of_your_own_is_loaded(make, tmp_path):
    inputs = keras.Input((3, 4))
    model = keras.Model(inputs, make()(inputs))
    x = normal(2, 3, 4)
    np.testing.assert_array_equal(as_numpy(reloaded(model, tmp_path)(x)), as_numpy(model(x)))


@pytest.mark.parametrize(("make", "name", "value"), [
    (lambda: FeedForward(8), "activation", keras.activations.gelu),
    (lambda: EncoderLayer(2, 8), "normalize_first", True),
    (lambda: EncoderLayer(feed_forward=FeedForward(8), num_heads=2), "feed_forward", FeedForward(16)),
], ids=["function", "bool", "layer"])  # fmt: skip
def test_an_attribute_that_is_set_later_is_saved(make, name, value, tmp_path):
    layer, inputs = make(), keras.Input((3, 4))
    setattr(layer, name, value)
    model, x = keras.Model(inputs, layer(inputs)), normal(2, 3, 4)
    np.testing.assert_array_equal(as_numpy(reloaded(model, tmp_path)(x)), as_numpy(model(x)))


def test_a_sublayer_that_a_layer_made_cannot_be_replaced_in_its_file():
    layer = EncoderLayer(2, 8)
    layer.feed_forward = FeedForward(16)
    refuses("The `feed_forward` of a layer that made its own cannot be set", layer.get_config)


@pytest.mark.slow
def test_frozen_inner_layer_stays_frozen_in_any_model(tmp_path):
    encoder, inputs = Encoder(2, 2, 8), keras.Input((3, 4))
    model = keras.Model(inputs, encoder(inputs))
    encoder.layers[0].trainable = False
    again = reloaded(model, tmp_path)
    assert [w.trainable for w in again.weights] == [w.trainable for w in model.weights]
    assert 0 < len(again.trainable_weights) < len(again.weights)
    clone = keras.models.clone_model(model)
    assert len(clone.trainable_weights) == len(model.trainable_weights)


@pytest.mark.parametrize(
    "config",
    [keras.quantizers.Int4QuantizationConfig, keras.quantizers.Int8QuantizationConfig],
    ids=["int4", "int8"],
)
def test_loaded_model_quantizes_weights_alone_as_the_saved_one(config, tmp_path):
    """Weights alone are quantized here, not what goes into the products."""
    model = LanguageModel(Embeddings(11, 8), Decoder(1, 2, 16))
    model.quantize(config=config(activation_quantizer=None))
    again = reloaded(model, tmp_path)
    np.testing.assert_allclose(as_numpy(again(IDS)), as_numpy(model(IDS)), atol=1e-6)


def test_a_quantized_functional_model_from_a_file_is_saved_again(tmp_path):
    inputs = keras.Input((3, 4))
    model = keras.Model(inputs, Encoder(1, 2, 8)(inputs))
    model.quantize("int8")
    x = normal(2, 3, 4)
    again = reloaded(reloaded(model, tmp_path), tmp_path)
    np.testing.assert_array_equal(as_numpy(again(x)), as_numpy(model(x)))


@pytest.mark.slow
def test_a_layer_in_several_places_of_one_stack_is_cloned_and_saved(tmp_path):
    layer, inputs = EncoderLayer(2, 8), keras.Input((3, 4))
    model = keras.Model(inputs, Encoder([layer, layer, layer])(inputs))
    assert len(keras.models.clone_model(model).weights) == len(model.weights)
    assert len(reloaded(model, tmp_path).weights) == len(model.weights) == 16


def test_a_layer_in_several_places_is_one_layer_of_a_clone():
    norm = LayerNormalization()
    source, target = (Embeddings(11, 4, norm=norm, name=name) for name in ("source", "target"))
    model = EncoderDecoder(source, Encoder(1, 2, 8), target, Decoder(1, 2, 8))
    clone = keras.models.clone_model(model)
    assert clone.source.norm is clone.target.norm and clone.source.tokens is not clone.target.tokens
    assert len(clone.weights) == len(model.weights)
    again = EncoderDecoder(source, Encoder(1, 2, 8), source, Decoder(1, 2, 8))
    assert str(again.get_config()).count("'shared_object_id': 1}") == 2  # in every process


@pytest.mark.slow
def test_a_replaced_model_does_not_count():
    """A cell of a notebook that makes a model with a given encoder may run twice."""
    encoder, decoder = Encoder(1, 2, 8), Decoder(1, 2, 8)
    for _ in range(2):
        model = EncoderDecoder(Embeddings(11, 4), encoder, Embeddings(11, 4), decoder)
    assert EncoderDecoder.from_config(model.get_config()).count_params() == model.count_params()


class _PassesOn(EncoderLayer):
    def __init__(self, extra, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.extra = extra


@keras.saving.register_keras_serializable("test_saving_parts")
class _TakesLayers(Encoder):
    def __init__(self, *layers, **kwargs):
        super().__init__(list(layers), **kwargs)


class _TakesDict(FeedForward):
    def __init__(self, d_ff, parts, **kwargs):
        super().__init__(d_ff, **kwargs)
        self.parts = parts


def test_layers_in_a_dict_are_in_the_configuration():
    layer = _TakesDict(8, {"first": keras.layers.Dense(3), "sizes": [1, 2]})
    again = _TakesDict.from_config(layer.get_config())
    assert again.parts["first"].units == 3 and again.parts["sizes"] == [1, 2]


def test_arguments_that_a_subclass_passes_on_are_in_its_configuration():
    layer = _PassesOn(5, 2, 8, 0.3)
    again = _PassesOn.from_config(layer.get_config())
    assert (again.extra, again.num_heads, again.feed_forward.d_ff, again.dropout) == (5, 2, 8, 0.3)


@keras.saving.register_keras_serializable("test_saving_parts")
class _TakesSizesAndLayers(_TakesLayers):
    def __init__(self, extra, *parts, scale=1.0, **kwargs):
        super().__init__(*parts, **kwargs)
        self.extra, self.scale = extra, scale


def test_unnamed_layers_of_a_subclass_are_saved_and_cloned(tmp_path):
    x = normal(2, 3, 4)
    for stack in (
        _TakesLayers(*(EncoderLayer(2, 8) for _ in range(3))),
        _TakesSizesAndLayers(5, EncoderLayer(2, 8), EncoderLayer(2, 8), scale=2.0),
    ):
        inputs = keras.Input((3, 4))
        model = keras.Model(inputs, stack(inputs))
        again = reloaded(model, tmp_path)
        np.testing.assert_array_equal(as_numpy(again(x)), as_numpy(model(x)))
        copy = type(stack).from_config(stack.get_config())
        assert copy.num_layers == stack.num_layers and copy.get_config().keys() == stack.get_config().keys()
    assert (copy.extra, copy.scale) == (5, 2.0)
