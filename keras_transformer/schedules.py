"""Learning-rate schedules: each rises, then falls. Steps count from 0, as Keras's optimizers count them."""

import math

import keras
from keras import ops

from keras_transformer.checks import check, check_positive, check_range


class _RiseAndFall(keras.optimizers.schedules.LearningRateSchedule):
    """Base class of schedules that rise linearly from `initial` to `peak`, then fall as `_fallen` computes it."""

    def __init__(self, peak, warmup_steps, initial):
        check_range(0, above=True, peak=peak)
        check_range(0, warmup_steps=warmup_steps, initial=initial)
        self.peak = peak
        self.warmup_steps = warmup_steps
        self.initial = initial

    def _fallen(self, number):
        """Returns the rate of a step after the rise; `number`, float32, counts from 1."""
        raise NotImplementedError

    def __call__(self, step):
        """Returns the rate at `step`, which counts from 0: float32 of any shape."""
        number = ops.cast(step, "float32") + 1.0
        risen = ops.minimum(number / max(self.warmup_steps, 1), 1.0)
        rising = self.initial + (self.peak - self.initial) * risen
        return ops.where(number < self.warmup_steps, rising, self._fallen(number))

    def get_config(self):
        return {"peak": self.peak, "warmup_steps": self.warmup_steps, "initial": self.initial}


@keras.saving.register_keras_serializable("keras_transformer")
class InverseSquareRootSchedule(_RiseAndFall):
    """Rises linearly to a peak, then falls with the inverse square root of the step.

    With `n = step + 1` the rate is `initial + (peak - initial) * n / warmup_steps` in the rise, then
    `peak * sqrt(warmup_steps / n)`. With `initial=0` this is the curve of "Attention Is All You Need", section 5.3,
    equation 3, given by its highest rate.

    Args:
        peak: The highest rate, at the end of the rise.
        warmup_steps: Number of steps of the rise.
        initial: The rate where the rise starts.

    Call arguments:
        step: Number of the step, counted from 0, of any shape.

    Returns:
        The rate, float32 of the shape of `step`.

    Raises:
        ValueError: If `peak` is not positive, or another argument is negative.

    >>> round(float(InverseSquareRootSchedule(0.005, 2000)(7999)), 6)
    0.0025
    """

    def __init__(self, peak, warmup_steps=4000, initial=0.0):
        super().__init__(peak, warmup_steps, initial)

    def _fallen(self, number):
        return self.peak * math.sqrt(max(self.warmup_steps, 1)) * ops.rsqrt(number)


@keras.saving.register_keras_serializable("keras_transformer")
class WarmupSchedule(InverseSquareRootSchedule):
    """The paper's schedule: an `InverseSquareRootSchedule` whose peak follows from the width of the model.

    `rate = scale * d_model**-0.5 * min(n**-0.5, n * warmup_steps**-1.5)` with `n = step + 1`
    ("Attention Is All You Need", section 5.3, equation 3). The paper counts steps from 1, Keras's optimizers
    from 0. The peak, at `n = warmup_steps`, is `scale * (d_model * warmup_steps)**-0.5`.

    Args:
        d_model: Width of the model; wider models get smaller rates.
        warmup_steps: Number of steps of the rise; the peak is at its end.
        scale: Factor of the whole schedule.

    Call arguments:
        step: Number of the step, counted from 0, of any shape.

    Returns:
        The rate, float32 of the shape of `step`.

    Raises:
        ValueError: If `d_model`, `warmup_steps` or `scale` is not positive.

    >>> round(float(WarmupSchedule(d_model=512)(3999)), 6)
    0.000699
    """

    def __init__(self, d_model, warmup_steps=4000, scale=1.0):
        check_range(0, above=True, d_model=d_model, warmup_steps=warmup_steps, scale=scale)
        super().__init__(scale * (d_model * max(warmup_steps, 1)) ** -0.5, warmup_steps)
        self.d_model = d_model
        self.scale = scale

    @classmethod
    def from_peak(cls, peak, warmup_steps, d_model):
        """Returns the schedule with the `scale` that makes `peak` the highest rate.

        Args:
            peak: The highest rate.
            warmup_steps: Number of steps of the rise.
            d_model: Width of the model.

        >>> round(float(WarmupSchedule.from_peak(0.005, warmup_steps=100, d_model=64)(99)), 6)
        0.005
        """
        return cls(d_model, warmup_steps, scale=peak * (d_model * warmup_steps) ** 0.5)

    def get_config(self):
        return {"d_model": self.d_model, "warmup_steps": self.warmup_steps, "scale": self.scale}


class _FallToFinal(_RiseAndFall):
    """Base class of schedules that fall to `final` at step `total_steps` and stay there."""

    def __init__(self, peak, total_steps, warmup_steps=0, initial=0.0, final=0.0):
        super().__init__(peak, warmup_steps, initial)
        check_positive(total_steps=total_steps)
        check_range(0, final=final)
        rule = "`warmup_steps` must be less than `total_steps`."
        check(warmup_steps < total_steps, rule, warmup_steps=warmup_steps, total_steps=total_steps)
        self.total_steps = total_steps
        self.final = final

    def _share(self, done):
        """Returns the share of the way from `final` to `peak` that is left; `done` is in [0, 1]."""
        raise NotImplementedError

    def _fallen(self, number):
        done = (number - self.warmup_steps) / (self.total_steps - self.warmup_steps)
        return self.final + (self.peak - self.final) * self._share(ops.clip(done, 0.0, 1.0))

    def get_config(self):
        return {**super().get_config(), "total_steps": self.total_steps, "final": self.final}


@keras.saving.register_keras_serializable("keras_transformer")
class LinearSchedule(_FallToFinal):
    """Rises linearly to a peak, then falls linearly (Devlin et al., 2019, "BERT", appendix A.2).

    Args:
        peak: The highest rate, at the end of the rise.
        total_steps: Number of steps of the training; the rate is `final` at the last step and after it.
        warmup_steps: Number of steps of the rise, part of `total_steps`.
        initial: The rate where the rise starts.
        final: The rate where the fall ends.

    Call arguments:
        step: Number of the step, counted from 0, of any shape.

    Returns:
        The rate, float32 of the shape of `step`.

    Raises:
        ValueError: If an argument is out of its range, or the rise is as long as the training.

    >>> round(float(LinearSchedule(0.004, total_steps=100, warmup_steps=20)(59)), 6)
    0.002
    """

    def _share(self, done):
        return 1.0 - done


@keras.saving.register_keras_serializable("keras_transformer")
class CosineSchedule(_FallToFinal):
    """Rises linearly to a peak, then falls along half a cosine (Loshchilov and Hutter, 2017, "SGDR", equation 5).

    Args:
        peak: The highest rate, at the end of the rise.
        total_steps: Number of steps of the training; the rate is `final` at the last step and after it.
        warmup_steps: Number of steps of the rise, part of `total_steps`.
        initial: The rate where the rise starts.
        final: The rate where the fall ends.

    Call arguments:
        step: Number of the step, counted from 0, of any shape.

    Returns:
        The rate, float32 of the shape of `step`.

    Raises:
        ValueError: If an argument is out of its range, or the rise is as long as the training.

    >>> round(float(CosineSchedule(0.004, total_steps=100, warmup_steps=20)(59)), 6)
    0.002
    """

    def _share(self, done):
        return 0.5 * (1.0 + ops.cos(math.pi * done))
