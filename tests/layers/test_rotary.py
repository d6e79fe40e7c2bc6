"""Rotary positions beside complex numbers, and their scalings by hand."""

import math

import numpy as np
import pytest
from contracts import as_numpy, normal

from keras_transformer.layers import LinearScaling, Llama3Scaling, RotaryPositions, YarnScaling


def turned(x, positions, rates):
    """Channel i and channel i + dim/2 as one complex number, times e**(i * position * rate)."""
    half = x.shape[-1] // 2
    numbers = x[..., :half].astype("complex128") + 1j * x[..., half:]
    numbers = numbers * np.exp(1j * np.asarray(positions)[..., None] * np.asarray(rates))
    return np.concatenate([numbers.real, numbers.imag], axis=-1)


@pytest.mark.parametrize("positions", [None, [3, 7, 19, 100, 5]])
def test_agrees_with_complex_numbers(positions):
    x = normal(2, 3, 5, 8)
    rates = [50.0 ** (-2 * i / 8) for i in range(4)]
    given = None if positions is None else np.array(positions, "int32")
    expected = turned(x, range(5) if positions is None else positions, rates)
    np.testing.assert_allclose(as_numpy(RotaryPositions(50.0).rotate(x, given)), expected, atol=1e-5)


def test_scores_know_distances_alone():
    query, key = normal(1, 1, 1, 6), normal(1, 1, 1, 6, seed=1)
    rotary = RotaryPositions()

    def score(i, j):
        q, k = (rotary.rotate(x, np.array([p], "int32")) for x, p in ((query, i), (key, j)))
        return float((as_numpy(q) * as_numpy(k)).sum())

    assert score(3, 1) == pytest.approx(score(12, 10), abs=1e-4)
    assert abs(score(3, 1) - score(1, 3)) > 1e-3


def test_linear_scaling_divides_each_rate():
    assert LinearScaling(4.0).scaled([1.0, 0.5]) == [0.25, 0.125]


def test_llama3_scaling_in_its_three_regimes():
    """1,000 tokens: a wave of 100 fits 10 times and stays, one of 2,000 half a time and is stretched by 8; one of 400
    fits 2.5 times, half way from 1 to 4."""
    scaling = Llama3Scaling(8.0, 1.0, 4.0, 1000)
    short, long, between = (2 * math.pi / wave for wave in (100, 2000, 400))
    expected = [short, long / 8, 0.5 * between + 0.5 * between / 8]
    np.testing.assert_allclose(scaling.scaled([short, long, between]), expected)


def test_yarn_scaling_in_its_three_regimes():
    """Waves that fit 100 times into the texts are those of channel 2, and one that fits once is that of channel 4."""
    rates = [10.0**-i for i in range(8)]
    scaling = YarnScaling(4.0, int(2 * math.pi * 10_000), fast=100.0, slow=1.0, truncate=False)
    low, high = (math.log10(scaling.original_max_length / (2 * math.pi * waves)) for waves in (100, 1))
    np.testing.assert_allclose((low, high), (2, 4), atol=1e-4)
    stretched = [0, 0, 0, 0.5, 1, 1, 1, 1]
    expected = [share * rate / 4 + (1 - share) * rate for share, rate in zip(stretched, rates, strict=True)]
    np.testing.assert_allclose(scaling.scaled(rates), expected, rtol=1e-3)
    assert YarnScaling().scaled([1.0]) == [1.0]


def test_yarn_scaling_makes_queries_and_keys_larger():
    x = normal(1, 1, 3, 6)
    plain, larger = (RotaryPositions(scaling=YarnScaling(4.0, 64, attention_factor=f))(x) for f in (1.0, 1.5))
    np.testing.assert_allclose(as_numpy(larger), 1.5 * as_numpy(plain), rtol=1e-6)
    assert YarnScaling(4.0).magnitude == pytest.approx(0.1 * math.log(4) + 1)
    assert YarnScaling(0.5).magnitude == LinearScaling(4.0).magnitude == 1.0


@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 5, 3, 4), (2, 1, 5, 3, 4)])
def test_positions_of_each_row_keep_the_shape_of_the_input(shape):
    x, positions = normal(*shape), np.array([[0, 1, 2], [3, 4, 5]])
    rotated = as_numpy(RotaryPositions()(x, positions=positions))
    assert rotated.shape == shape
    for row in range(2):
        expected = RotaryPositions()(x[row : row + 1], positions=positions[row])
        np.testing.assert_allclose(rotated[row : row + 1], as_numpy(expected), atol=1e-6)
