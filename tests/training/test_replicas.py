"""Training on several devices of one machine is training on one."""

import subprocess
import sys

import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

PROGRAM = """
import contextlib, sys
import keras, numpy as np, tensorflow as tf
import keras_transformer as kt
from keras_transformer.training.replicas import Mirrored

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = Mirrored(["CPU:0", "CPU:1"])
ids = np.random.default_rng(0).integers(4, 13, (11, 7)).astype("int32")
ids[np.arange(7) >= np.where(np.arange(11) % 5 < 3, 1, 7)[:, None]] = 0  # 3 tokens and 14, then a row and none
results = []
for scope in (contextlib.nullcontext(), strategy.scope()):
    keras.utils.set_random_seed(1)
    with scope:
        model = kt.Transformer(13, num_layers=1, d_model=6, num_heads=2, d_ff=7, dropout=0.0)
        loss = kt.MaskedCrossentropy(0.1)
        model.compile(OPTIMIZER, loss, metrics=[kt.MaskedAccuracy(), kt.Perplexity()])
        data = tf.data.Dataset.from_tensor_slices(({"source": ids, "target": ids}, ids)).batch(5)
        watching = kt.training.TensorBoard(f"{sys.argv[1]}/{len(results)}")
        history = model.fit(
            data, validation_data=data, epochs=2, verbose=0, shuffle=False, callbacks=[watching]
        ).history
    results.append([*history.values(), *model.get_weights()])
for a, b in zip(*results, strict=True):
    np.testing.assert_allclose(b, a, rtol=0, atol=1e-5)
print("equal", strategy.num_replicas_in_sync)
"""


# Biases of keys have no gradient but rounding errors, which Adam's usual epsilon would blow up.
@pytest.mark.slow
@pytest.mark.parametrize(
    "optimizer",
    [
        "keras.optimizers.SGD(0.5)",
        "keras.optimizers.SGD(0.5, global_clipnorm=0.05)",
        "kt.training.Adam(0.01, epsilon=1e-3, clipnorm=0.01)",
    ],
)
def test_two_replicas_equal_one_and_are_watched_alike(tmp_path, optimizer):
    program = PROGRAM.replace("OPTIMIZER", optimizer)
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True)
    assert done.stdout.strip().endswith("equal 2"), done.stderr[-2000:]
    one, two = (EventAccumulator(str(tmp_path / run / "train")).Reload() for run in "01")
    for tag in ("quality/loss", "training/padding"):
        points, others = (
            [(event.step, float(tf.make_ndarray(event.tensor_proto))) for event in events.Tensors(tag)]
            for events in (one, two)
        )
        assert len(points) == 2
        assert others == [pytest.approx(point, rel=1e-5) for point in points]
    assert set(two.Tags()["tensors"]) == set(one.Tags()["tensors"])
