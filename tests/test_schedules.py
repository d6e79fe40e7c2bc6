import keras
import numpy as np
import pytest
from contracts import as_numpy, refuses
from keras import ops

from keras_transformer.schedules import (
    CosineSchedule,
    InverseSquareRootSchedule,
    LinearSchedule,
    WarmupSchedule,
)


@pytest.mark.parametrize(
    ("step", "rate"),
    [
        (0, 1.74692811e-07),  # 512**-0.5 * 1 * 4000**-1.5
        (1, 3.49385621e-07),  # twice that
        (1999, 3.49385621e-04),  # half of the peak
        (3999, 6.98771243e-04),  # 512**-0.5 * 4000**-0.5
        (15999, 3.49385621e-04),  # four times the steps, half of the rate
        (99999, 1.39754249e-04),  # 512**-0.5 * 100000**-0.5
    ],
)
def test_rate_of_the_paper(step, rate):
    np.testing.assert_allclose(as_numpy(WarmupSchedule(512)(step)), rate, rtol=1e-6)


def test_rise_is_linear_and_fall_is_the_inverse_root():
    rates = as_numpy(WarmupSchedule(4, 5)(np.arange(20)))
    np.testing.assert_allclose(rates[:5], np.arange(1, 6) * 0.5 * 5**-1.5, rtol=1e-5)
    np.testing.assert_allclose(rates[5:], 0.5 * np.arange(6, 21) ** -0.5, rtol=1e-5)


def test_scale_multiplies_every_rate():
    steps = np.arange(11)
    np.testing.assert_allclose(
        as_numpy(WarmupSchedule(4, 5, scale=3.0)(steps)), 3 * as_numpy(WarmupSchedule(4, 5)(steps)), rtol=1e-6
    )


def test_from_peak_reaches_its_peak_and_no_more():
    schedule = WarmupSchedule.from_peak(0.005, warmup_steps=7, d_model=13)
    rates = as_numpy(schedule(np.arange(30)))
    np.testing.assert_allclose(rates.max(), 0.005, rtol=1e-5)
    assert rates.argmax() == 6
    np.testing.assert_allclose(rates[0], 0.005 / 7, rtol=1e-5)


def test_rate_is_float32_for_the_integer_step_of_an_optimizer():
    rate = WarmupSchedule(512)(ops.convert_to_tensor(3999, "int64"))
    assert keras.backend.standardize_dtype(rate.dtype) == "float32"


def test_optimizer_takes_the_rate_of_its_own_step():
    """Plain gradient descent with gradient 1 moves by the rate: of step 0 first, then of step 1."""
    schedule = WarmupSchedule(4, 3)
    optimizer = keras.optimizers.SGD(schedule)
    variable = keras.Variable(0.0)
    optimizer.build([variable])
    optimizer.apply_gradients([(ops.ones(()), variable)])
    first = float(as_numpy(variable))
    optimizer.apply_gradients([(ops.ones(()), variable)])
    np.testing.assert_allclose(first, -(0.5 * 3**-1.5), rtol=1e-5)
    np.testing.assert_allclose(float(as_numpy(variable)) - first, -(0.5 * 2 * 3**-1.5), rtol=1e-5)


@pytest.mark.parametrize("wrong", [{"d_model": 0}, {"warmup_steps": 0}, {"scale": -1.0}])
def test_sizes_must_be_positive(wrong):
    name, value = next(iter(wrong.items()))
    with pytest.raises(ValueError, match=f"`{name}` must be a number above 0. Received: {name}={value}"):
        WarmupSchedule(**{"d_model": 4, **wrong})


@pytest.mark.parametrize("warmup_steps", [1, 7])
def test_inverse_square_root_is_the_curve_of_the_paper_given_by_its_peak(warmup_steps):
    steps = np.arange(30)
    np.testing.assert_allclose(
        as_numpy(InverseSquareRootSchedule(0.005, warmup_steps)(steps)),
        as_numpy(WarmupSchedule.from_peak(0.005, warmup_steps, d_model=13)(steps)),
        rtol=1e-6,
    )


def test_without_a_warmup_the_inverse_square_root_starts_at_its_peak():
    rates = as_numpy(InverseSquareRootSchedule(0.6, 0)(np.arange(4)))
    np.testing.assert_allclose(rates, 0.6 * np.arange(1, 5) ** -0.5, rtol=1e-6)


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        # Rises in 2 steps, falls in 4, stays.
        (LinearSchedule(0.8, 6, 2), [0.4, 0.8, 0.6, 0.4, 0.2, 0.0, 0.0]),
        (LinearSchedule(0.8, 6, 2, initial=0.2, final=0.4), [0.5, 0.8, 0.7, 0.6, 0.5, 0.4, 0.4]),
        (LinearSchedule(0.8, 4), [0.6, 0.4, 0.2, 0.0, 0.0]),
        # cos(pi / 4) is 0.7071.
        (CosineSchedule(0.8, 6, 2), [0.4, 0.8, 0.4 * 1.70710678, 0.4, 0.4 * 0.29289322, 0.0, 0.0]),
    ],
)
def test_rates_by_hand(schedule, rates):
    np.testing.assert_allclose(as_numpy(schedule(np.arange(len(rates)))), rates, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("schedule", [
    WarmupSchedule(13, 7, 0.3), InverseSquareRootSchedule(0.8, 7, 0.1), LinearSchedule(0.8, 11, 7, 0.1, 0.2),
    CosineSchedule(0.8, 11, 7, 0.1, 0.2),
], ids=lambda schedule: type(schedule).__name__)  # fmt: skip
def test_schedules_come_back_from_their_config(schedule):
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(schedule))
    assert type(again) is type(schedule)
    assert again.get_config() == schedule.get_config()
    steps = np.arange(13)
    np.testing.assert_array_equal(as_numpy(again(steps)), as_numpy(schedule(steps)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: InverseSquareRootSchedule(0.0), "`peak` must be a number above 0. Received: peak=0.0"),
        (
            lambda: InverseSquareRootSchedule(0.1, -1),
            "`warmup_steps` must be a number at least 0. Received: warmup_steps=-1",
        ),
        (lambda: LinearSchedule(0.1, 5, 5), "`warmup_steps` must be less than `total_steps`"),
        (
            lambda: CosineSchedule(0.1, 5, final=-1.0),
            "`final` must be a number at least 0. Received: final=-1.0",
        ),
    ],
)
def test_unusable_arguments_are_refused(make, message):
    refuses(message, make)
