"""What decides the numbers that a layer computes: options are found at their paths, and defaults are filled in."""

import inspect

import keras
import pytest

from keras_transformer import layers
from keras_transformer.layers.numbers import WITHOUT_NUMBERS, SameAs, first_difference, numbers
from keras_transformer.models import T5, EncoderDecoder, Transformer

SHAPE = (None, None, 12)


def built(layer, *shapes):
    layer.build(*(shapes or (SHAPE,)))
    return layer


def attention(**options):
    return built(layers.MultiHeadAttention(**{"num_heads": 4, "key_dim": 6, **options}), SHAPE, SHAPE)


def stack(first=None, **options):
    """An encoder of two layers that are made of parts, the first of which may have other options of its attention."""
    made = []
    for own in (first or {}, {}):
        parts = {
            "attention": layers.MultiHeadAttention(**{"num_heads": 3, "key_dim": 4, **own}),
            "feed_forward": layers.FeedForward(7),
        }
        made.append(layers.EncoderLayer(**parts, **options))
    return built(layers.Encoder(made))


def difference(part, other):
    return first_difference(numbers(part), numbers(other))


def test_a_layer_made_of_sizes_has_the_numbers_of_one_made_of_parts():
    of_sizes = built(layers.Encoder(2, 3, 7, attention_dropout=0.3, activation="relu", norm="rms"))
    assert difference(of_sizes, stack(norm="rms")) is None
    path = "layers.0.self_attention_residual.norm"
    expected = (path, layers.RMSNormalization, layers.LayerNormalization)
    assert difference(of_sizes, stack()) == expected


def test_defaults_are_filled_in():
    found = numbers(attention(key_dim=None, query_key_norm="rms"))
    expected = {"key_dim": 3, "value_dim": 3, "num_key_value_heads": 4, "scale": round(3**-0.5, 9)}
    expected |= {"output_bias": True, "output_shape.0": 12, "norm_epsilon": 1e-6, "norm_over_heads": False}
    assert {name: found[name] for name in expected} == expected
    assert numbers(layers.TokenEmbedding(11, 9))["scale"] == 3.0


def test_an_option_of_one_layer_is_named_with_both_values():
    path = "layers.0.self_attention.scale"
    assert difference(stack({"scale": 0.3}), stack()) == (path, 0.3, 0.5)


@pytest.mark.parametrize(
    "options",
    [
        {"dropout": 0.3},
        {"name": "other", "trainable": False, "seed": 3},
        {"kernel_initializer": "zeros", "bias_regularizer": "l2"},
        {"scale": 6**-0.5, "value_dim": 6, "output_bias": True, "output_shape": 12},
        {"norm_epsilon": 1e-3, "norm_over_heads": True},
    ],
)
def test_what_changes_no_output_is_left_out(options):
    assert difference(attention(**options), attention()) is None


OPTIONS = {
    "num_heads": 2, "key_dim": 2, "value_dim": 5, "use_bias": False, "output_shape": 7, "num_key_value_heads": 2,
    "positions": layers.RotaryPositions(), "query_key_norm": "rms", "scale": 0.3, "soft_cap": 2.0,
    "output_bias": False, "sliding_window": 3, "use_gate": True,
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIONS)
def test_each_other_option_of_attention_changes_its_numbers(name):
    assert difference(attention(**{name: OPTIONS[name]}), attention())


def test_no_option_of_attention_is_forgotten():
    names = {
        name
        for cls in (layers.MultiHeadAttention, keras.layers.MultiHeadAttention)
        for name in inspect.signature(cls.__init__).parameters
    }
    ignored = {name for name in names if WITHOUT_NUMBERS.fullmatch(name)}
    # Those of the norm have no effect without `query_key_norm`.
    assert names - ignored - {"self", "kwargs", "norm_epsilon", "norm_over_heads"} == OPTIONS.keys()


def test_a_shared_layer_with_weights_is_told_from_several():
    def stack_of(*biases):
        made = [
            layers.EncoderLayer(
                attention=layers.MultiHeadAttention(3, 4, positions=each), feed_forward=layers.FeedForward(7)
            )
            for each in biases
        ]
        return built(layers.Encoder(made))

    def bias():
        return layers.RelativePositionBias(3)

    shared, first = bias(), "layers.0.self_attention.positions"
    path = "layers.1.self_attention.positions"
    expected = (path, layers.RelativePositionBias, SameAs(first))
    assert difference(stack_of(bias(), bias()), stack_of(shared, shared)) == expected
    rotary = layers.RotaryPositions()
    assert difference(stack_of(rotary, rotary), stack_of(rotary, layers.RotaryPositions())) is None


def test_a_transformer_has_the_numbers_of_its_parts():
    made = Transformer(11, num_layers=2, d_model=12, num_heads=3, d_ff=7)
    encoder, decoder = layers.Encoder(2, 3, 7), layers.Decoder(2, 3, 7)
    embeddings = layers.Embeddings(11, 12, layers.PositionalEncoding(), scale=12**0.5)
    parts = EncoderDecoder(embeddings, encoder, embeddings, decoder)
    assert first_difference(numbers(made.numbers()), numbers(parts.numbers())) is None
    t5 = T5(11, num_layers=1, d_model=12, num_heads=3, key_dim=5, d_ff=7)
    other = T5(11, num_layers=1, d_model=12, num_heads=3, key_dim=5, d_ff=7, output_scale=0.5)
    assert difference(other, t5)[0] == "source.tokens.output_scale"
