import re

import keras
import numpy as np
import pytest
from contracts import as_numpy, normal, refuses
from keras import ops
from reference import positions as reference_positions

from keras_transformer.layers import (
    LearnedPositions,
    PositionalEncoding,
    RotaryPositions,
    SegmentEmbedding,
    sinusoidal_positions,
)


def table(length, d_model, **arguments):
    return as_numpy(sinusoidal_positions(np.arange(length), d_model, **arguments))


def test_two_positions_by_hand():
    """Wavelength factors 1 and 10000**(2/4) = 100: sin and cos of 0, then of 1 and of 1/100."""
    expected = [[0, 1, 0, 1], [np.sin(1), np.cos(1), np.sin(0.01), np.cos(0.01)]]
    np.testing.assert_allclose(table(2, 4), expected, atol=1e-7)


@pytest.mark.parametrize("d_model", [1, 2, 7, 12, 13])
def test_table_agrees_with_numpy(d_model):
    np.testing.assert_allclose(table(53, d_model), reference_positions(53, d_model), atol=1e-5)


@pytest.mark.parametrize("d_model", [1, 2, 7, 12])
def test_all_sines_may_come_before_all_cosines(d_model):
    expected = reference_positions(53, d_model)
    expected = np.concatenate([expected[:, 0::2], expected[:, 1::2]], axis=1)
    np.testing.assert_allclose(table(53, d_model, interleaved=False), expected, atol=1e-5)
    found = PositionalEncoding(interleaved=False)(np.zeros((1, 5, d_model), "float32"), start_index=48)
    np.testing.assert_allclose(as_numpy(found)[0], expected[48:], atol=1e-5)


def test_wavelength_is_configurable():
    found = as_numpy(PositionalEncoding(max_wavelength=7.0)(np.zeros((2, 11, 5), "float32")))
    np.testing.assert_allclose(found[1], reference_positions(11, 5, max_wavelength=7.0), atol=1e-6)


@pytest.mark.parametrize("start_index", [0, 3, np.int32(29)])
def test_start_index_continues_the_table(start_index):
    x = normal(2, 5, 7)
    expected = x + reference_positions(5, 7, start_index=int(start_index))
    np.testing.assert_allclose(
        as_numpy(PositionalEncoding()(x, start_index=start_index)), expected, atol=1e-5
    )
    tensor = ops.convert_to_tensor(start_index, "int32")
    np.testing.assert_allclose(as_numpy(PositionalEncoding()(x, start_index=tensor)), expected, atol=1e-5)


def test_mixed_bfloat16_rounds_once_at_the_end():
    """At 512 positions, angles rounded to bfloat16 would be off by whole radians: neighbours fall together."""
    layer = PositionalEncoding(dtype="mixed_bfloat16")
    output = layer(np.zeros((1, 512, 16), "float32"))
    assert keras.backend.standardize_dtype(output.dtype) == "bfloat16"
    found, exact = as_numpy(output)[0], reference_positions(512, 16)
    np.testing.assert_allclose(found, exact, atol=2**-9 + 1e-4)
    assert not np.any(np.all(found[1:] == found[:-1], axis=1))


def test_sum_is_rounded_once_too():
    """The position is added in float32: one rounding of the sum, not one of each term and one of the sum."""
    x = ops.cast(normal(1, 64, 16), "bfloat16")
    found = as_numpy(PositionalEncoding(dtype="mixed_bfloat16")(x))
    exact = as_numpy(x) + reference_positions(64, 16)
    np.testing.assert_allclose(found, exact, rtol=2**-8, atol=1e-5)


def test_float16_positions_stay_exact_far_out():
    """Positions past 2048 are not all float16 numbers; they are counted in integers."""
    found = as_numpy(PositionalEncoding(dtype="float16")(np.zeros((1, 3, 4), "float16"), start_index=4097))
    np.testing.assert_allclose(found[0], reference_positions(3, 4, start_index=4097), atol=2e-3)


@pytest.mark.usefixtures("float64")
def test_a_float64_policy_computes_in_float64():
    x, exact = np.zeros((1, 53, 12)), reference_positions(53, 12)
    found = ops.convert_to_numpy(PositionalEncoding(dtype="float64")(x))[0]
    np.testing.assert_allclose(found, exact, atol=1e-12)
    pair = np.stack([np.ones(53), np.zeros(53)], axis=-1)[None]
    turned = ops.convert_to_numpy(RotaryPositions(dtype="float64")(pair))[0]
    np.testing.assert_allclose(turned, np.stack([np.cos(range(53)), np.sin(range(53))], axis=-1), atol=1e-13)


def test_offsets_and_the_last_wavelength():
    """fairseq's sinusoids: the first token stands at 2, and the last channel has the longest wavelength."""
    found = as_numpy(
        PositionalEncoding(interleaved=False, offset=2, endpoint=True)(np.zeros((1, 5, 6), "float32"))
    )[0]
    angles = np.arange(2, 7)[:, None] * 10000.0 ** (-np.arange(3) / 2)
    np.testing.assert_allclose(found, np.concatenate([np.sin(angles), np.cos(angles)], axis=-1), atol=1e-5)
    learned = LearnedPositions(5, 2)
    found = as_numpy(learned(np.zeros((1, 5, 3), "float32")))[0]
    np.testing.assert_array_equal(found, as_numpy(learned.embeddings)[2:])
    assert learned.embeddings.shape == (7, 3)


@pytest.mark.parametrize("x", [np.ones((2, 3), "int32"), np.ones((1, 2, 3, 4)), keras.Input((2, 3, 4))])
@pytest.mark.parametrize("layer", [PositionalEncoding(), LearnedPositions(5), SegmentEmbedding()])
def test_ids_in_place_of_vectors_and_grids_are_refused(layer, x):
    shape = re.escape(str(tuple(x.shape)))
    refuses(rf"`x` must have shape `\(batch, length, d_model\)`.* shape={shape}", layer, x)


def test_channels_that_do_not_fit_are_refused():
    refuses("needs more than 2 channels", PositionalEncoding(endpoint=True), np.zeros((1, 3, 2)))
    refuses("even number of channels", RotaryPositions().rotate, np.zeros((1, 1, 2, 3), "float32"))
