"""Poolings and the class token: values by hand, padding left out, all ranks."""

import keras
import numpy as np
import pytest
from contracts import (
    as_numpy,
    assert_close,
    gradient_of,
    needs_half_precision,
    normal,
    randomized,
    refuses,
    with_mask,
)

from keras_transformer import layers
from keras_transformer.execution import native
from keras_transformer.layers import ClassToken, Pooling

KINDS = ("mean", "max", "first", "last", "attention")
REAL = np.array([[True, True, True, False, False], [False, True, True, True, True], [False] * 5])


def made(kind, shape=(None, None, 7), **kwargs):
    layer = Pooling(kind, **kwargs)
    layer.build(shape)
    return randomized(layer, seed=3)


def by_hand(layer, x, real):
    """The vector of each row that has a token."""
    rows = []
    for row, seen in zip(x.astype("float64"), real, strict=True):
        if layer.pooling == "first":
            rows.append(row[0])
        elif not seen.any():
            rows.append(row[0] if layer.pooling == "last" else 0 * row[0])
        elif layer.pooling == "attention":
            kernel, bias = (as_numpy(weight) for weight in layer.weights)
            shares = np.exp(row[seen] @ kernel + bias)
            rows.append((shares * row[seen]).sum(axis=0) / shares.sum())
        elif layer.pooling == "last":
            rows.append(row[seen][-1])
        else:
            rows.append(getattr(row[seen], layer.pooling)(axis=0))
    return np.array(rows)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_is_left_out_and_a_row_of_padding_alone_has_a_vector(kind):
    layer, x = made(kind), normal(3, 5, 7)
    expected = by_hand(layer, x, REAL)
    assert_close(layer(x, padding_mask=REAL), expected)
    assert_close(layer(with_mask(x, REAL)), expected)
    assert_close(layer(x, padding_mask=REAL[:, None, None]), expected)
    assert_close(layer(x), by_hand(layer, x, np.ones_like(REAL)))
    compiled = native.compiled(lambda x, mask: layer(x, padding_mask=mask), layer, True)
    assert_close(compiled(*map(keras.ops.convert_to_tensor, (x, REAL))), expected)
    if kind not in ("first", "last"):
        gradient = gradient_of(lambda x: keras.ops.sum(layer(x, padding_mask=REAL)), x)
        assert np.isfinite(gradient).all() and not gradient[~REAL].any()
        hidden = np.where(REAL[..., None], x, np.nan)
        assert_close(layer(hidden, padding_mask=REAL), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_cells_of_a_grid_are_pooled_as_a_row(kind):
    layer, x = made(kind), normal(2, 3, 5, 2, 7)
    real = np.random.default_rng(0).random((2, 3, 5, 2)) < 0.5
    expected = by_hand(layer, x.reshape(2, 30, 7), real.reshape(2, 30))
    assert_close(layer(x, padding_mask=real), expected)
    inputs = keras.Input((None, None, 2, 7))
    assert_close(
        keras.Model(inputs, made(kind)(inputs))(x),
        by_hand(layer, x.reshape(2, 30, 7), real.reshape(2, 30) | True),
    )


@needs_half_precision
def test_half_precision_adds_in_float32():
    x = np.full((1, 4099, 1), 17.0, "float32")
    for kind in ("mean", "attention"):
        found = Pooling(kind, dtype="mixed_float16")(x)
        assert keras.backend.standardize_dtype(found.dtype) == "float16"
        assert_close(found, np.array([[17.0]]), 0.01)


def test_a_class_token_is_real_and_comes_first():
    x = normal(2, 3, 5, 7)
    layer = ClassToken("ones")
    y = layer(x)
    assert_close(y[:, 0], np.ones((2, 7)))
    assert_close(y[:, 1:], x.reshape(2, 15, 7))
    inputs = keras.Input((None, 7))
    z = keras.layers.Masking(0.0)(inputs)
    z = layers.Encoder(1, 1, 5, dropout=0.0)(ClassToken()(z))
    model = keras.Model(inputs, Pooling("first")(z))
    rows = x[:, 0]
    assert_close(model(np.pad(rows, ((0, 0), (0, 3), (0, 0)))), model(rows))
    assert ClassToken().compute_output_shape((None, 2, None, 7)) == (None, None, 7)


@pytest.mark.parametrize("layer", [Pooling("attention"), ClassToken()])
def test_a_matrix_is_refused(layer):
    refuses("`x` must have shape", layer, np.ones((2, 7)))


def test_an_unknown_pooling_is_named():
    refuses("pooling='sum'", Pooling, "sum")
