"""Learning-rate schedules."""

import keras
from keras import ops


@keras.saving.register_keras_serializable("keras_transformer")
class WarmupSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """Rises linearly for `warmup_steps` steps, then falls with the inverse square root of the step.

    `rate = scale * d_model**-0.5 * min(n**-0.5, n * warmup_steps**-1.5)` with `n = step + 1`
    ("Attention Is All You Need", section 5.3, equation 3). The paper counts steps from 1, Keras's optimizers
    from 0.

    Args:
        d_model: Width of the model; wider models get smaller rates.
        warmup_steps: Number of steps of the rise; the peak is at its end.
        scale: Factor on the whole schedule.

    Raises:
        ValueError: If `d_model`, `warmup_steps` or `scale` is not positive.

    >>> round(float(WarmupSchedule(d_model=512)(3999)), 6)
    0.000699
    """

    def __init__(self, d_model, warmup_steps=4000, scale=1.0):
        for name, value in (("d_model", d_model), ("warmup_steps", warmup_steps), ("scale", scale)):
            if not value > 0:
                raise ValueError(f"`{name}` must be positive. Received: {name}={value}.")
        self.d_model = d_model
        self.warmup_steps = warmup_steps
        self.scale = scale

    @classmethod
    def from_peak(cls, peak, warmup_steps, d_model):
        """The same curve, scaled so that its highest rate is `peak`."""
        return cls(d_model, warmup_steps, scale=peak * (d_model * warmup_steps) ** 0.5)

    def __call__(self, step):
        """The rate at `step`, which counts from 0; float32, any shape."""
        number = ops.cast(step, "float32") + 1.0
        rise = number * self.warmup_steps**-1.5
        return self.scale * self.d_model**-0.5 * ops.minimum(ops.rsqrt(number), rise)

    def get_config(self):
        return {"d_model": self.d_model, "warmup_steps": self.warmup_steps, "scale": self.scale}
