import keras
import numpy as np
import pytest
from contracts import as_numpy, assert_close, needs_half_precision, normal, randomized
from keras import ops
from reference import lstm, under, weights_of

from keras_transformer.layers import LSTMStack, LuongAttention

BATCH, LENGTH, FEATURES, UNITS, LAYERS = 3, 5, 4, 7, 2
LENGTHS = (5, 3, 0)
RIGHT = np.arange(LENGTH) < np.array(LENGTHS)[:, None]


def stack(**kwargs):
    layer = LSTMStack(LAYERS, UNITS, **kwargs)
    layer.build((None, None, FEATURES))
    return randomized(layer)


def by_hand(layer, x, state):
    """The stack over one row `(length, features)` from a state `(num_layers, 2, units)`."""
    after = []
    for i in range(LAYERS):
        x, last = lstm(under(weights_of(layer), f"layer_{i}/lstm_cell"), x, *state[i])
        after.append(last)
    return x, np.array(after)


@pytest.mark.slow
@pytest.mark.parametrize("side", ["right", "left"])
def test_states_agree_with_the_equations_and_padding_keeps_them(side):
    layer, x = stack(), normal(BATCH, LENGTH, FEATURES)
    mask = RIGHT if side == "right" else RIGHT[:, ::-1]
    for before in (None, normal(BATCH, LAYERS, 2, UNITS)):
        found, after = (as_numpy(part) for part in layer(x, before, mask=mask))
        for row in range(BATCH):
            begin = np.zeros((LAYERS, 2, UNITS)) if before is None else before[row]
            expected, last = by_hand(layer, x[row, mask[row]], begin)
            np.testing.assert_allclose(found[row, mask[row]], expected, atol=1e-5)
            np.testing.assert_allclose(after[row], last, atol=1e-5)


@pytest.mark.parametrize("chunk", [1, 2])
@pytest.mark.parametrize("masked", [False, True])
def test_decoding_in_chunks_equals_one_pass(chunk, masked):
    layer, x = stack(), normal(BATCH, LENGTH, FEATURES)
    mask = RIGHT[:, ::-1] if masked else np.ones((BATCH, LENGTH), bool)
    expected, last = layer(x, mask=mask if masked else None)
    state, parts = layer.empty_state(BATCH), []
    for start in range(0, LENGTH, chunk):
        piece = slice(start, start + chunk)
        states, state = layer(x[:, piece], state, mask=mask[:, piece] if masked else None)
        parts.append(states)
    assert_close(state, last)
    found = as_numpy(ops.concatenate(parts, axis=1))
    np.testing.assert_allclose(found[mask], as_numpy(expected)[mask], atol=1e-5)


@pytest.mark.slow
def test_dropout_is_between_the_layers_alone():
    x = normal(BATCH, LENGTH, FEATURES)
    dropping = stack(dropout=0.5)
    assert_close(dropping(x), stack()(x), 0.0)
    assert np.abs(as_numpy(dropping(x, training=True)[0]) - as_numpy(dropping(x)[0])).max() > 0.01
    single = LSTMStack(1, UNITS, 0.5)
    assert_close(single(x, training=True), single(x), 0.0)


def test_attention_by_hand():
    """Two states of the memory; the query turns to the second as e to 1."""
    layer = LuongAttention()
    x, memory = np.array([[[0.0, 1.0]]], "float32"), np.array([[[0.0, 0.0], [0.5, 1.0]]], "float32")
    layer(x, memory)
    layer.projection.kernel.assign([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.5]])
    output, weights = layer(x, memory, return_attention_scores=True)
    share = np.e / (1 + np.e)
    assert_close(weights, np.array([[[[1 - share, share]]]]))
    assert_close(output, np.tanh([[[0.5 * share, 0.5]]]))
    alone, weights = layer(x, memory, np.array([[True, False]]), return_attention_scores=True)
    assert_close(weights, np.array([[[[1.0, 0.0]]]]))
    assert_close(alone, np.tanh([[[0.0, 0.5]]]))


@needs_half_precision
def test_states_stay_in_the_compute_dtype():
    layer = stack(dtype="mixed_bfloat16")
    for length in (1, 3):
        for part in layer(normal(BATCH, length, FEATURES)):
            assert keras.backend.standardize_dtype(part.dtype) == "bfloat16"
