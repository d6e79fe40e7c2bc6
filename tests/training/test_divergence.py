import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.training import Diverged, StopOnNaN


@pytest.mark.slow
@pytest.mark.parametrize(("lost_at", "epoch", "step"), [(1, 2, 6), (2, 3, 0)])
def test_step_continues_that_of_an_earlier_training(lost_at, epoch, step):
    x = np.ones((4, 2, 3), "float32")
    x[lost_at] = np.nan
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    callback = StopOnNaN(lambda *which: [which], first_step=5)
    with pytest.raises(Diverged) as caught:
        model.fit(
            tf.data.Dataset.from_tensor_slices((x, np.ones((4, 2, 1)))), steps_per_epoch=2, initial_epoch=2,
            epochs=4, shuffle=False, verbose=0, callbacks=[callback],
        )  # fmt: skip
    assert f"in epoch {epoch + 1}, step {step + 1}, " in str(caught.value)
    assert f"The batch begins with [({epoch}, {step})]." in str(caught.value)
