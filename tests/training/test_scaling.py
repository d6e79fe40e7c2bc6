"""Training on several processes or devices is training on one with the joint batch."""

import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_transformer as kt

ROOT = pathlib.Path(__file__).parents[2]
LIMIT = 600  # seconds: a process that hangs fails its test

# Two epochs of ten steps. The first half of each batch has one token a row, the other half seven.
DATA = """
import numpy as np

ids = np.random.default_rng(0).integers(4, 13, (10 * ROWS, 7)).astype("int32")
ids[np.arange(7) >= np.where(np.arange(10 * ROWS) % ROWS < ROWS / 2, 1, 7)[:, None]] = 0
batches = tf.data.Dataset.from_tensor_slices(({"source": ids, "target": ids}, ids)).batch(ROWS)

def compiled(model):
    # Biases of keys have no gradient but rounding errors, which the usual epsilon would blow up.
    optimizer = keras.optimizers.Adam(0.01, epsilon=1e-3)
    model.compile(optimizer, kt.MaskedCrossentropy(0.1), metrics=[kt.MaskedAccuracy(), kt.Perplexity()])
    return model
"""

TENSORFLOW = f"""
import os, signal, sys
import keras, tensorflow as tf
import keras_transformer as kt
from keras_transformer.training.replicas import MultiWorker

folder, name, begin, die = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:] == ["die"]
strategy, saves, dies_at = tf.distribute.get_strategy(), False, None
if "TF_CONFIG" in os.environ:
    strategy = MultiWorker()
    saves = strategy.is_chief
    name += "0" if saves else "1"
    dies_at = 15 if die and not saves else None

ROWS = 5  # three and two
{DATA}
spec = tf.TensorSpec((None, None), tf.int32)  # of no known size, like the batches of `kt.data.Batches`
batches = tf.data.Dataset.from_generator(
    batches.as_numpy_iterator, output_signature=({{"source": spec, "target": spec}}, spec)
)
batches = batches.apply(tf.data.experimental.assert_cardinality(10)).prefetch(2)

class Callbacks(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if saves:
            self.model.save(f"{{folder}}/{{epoch + 1}}.keras")

    def on_train_batch_end(self, batch, logs=None):
        if self.model.optimizer.iterations.numpy() == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

keras.utils.set_random_seed(1)
with strategy.scope():
    if begin:
        model = keras.models.load_model(f"{{folder}}/{{begin}}.keras")
    else:
        model = compiled(kt.Transformer(13, num_layers=1, d_model=6, num_heads=2, d_ff=7, dropout=0.0))
history = model.fit(
    batches, validation_data=batches.take(3), epochs=2, initial_epoch=begin, verbose=0, callbacks=[Callbacks()]
).history
history["evaluated"] = model.evaluate(batches.take(2), verbose=0)
np.savez(f"{{folder}}/{{name}}.npz", *model.get_weights(), **history)
"""

JAX = f"""
import sys
import keras, tensorflow as tf
import keras_transformer as kt

folder, name, kinds, address, rank = sys.argv[1:]
if address:
    keras.distribution.initialize(address, 2, int(rank))

ROWS = 8
{DATA}

def mesh():
    return keras.distribution.DeviceMesh((2, len(keras.distribution.list_devices()) // 2), ("batch", "model"))

def distribution(kind, model):
    if kind == "data":
        return keras.distribution.DataParallel()
    if kind == "model":
        return keras.distribution.ModelParallel(layout_map=model.layout_map(mesh()), batch_dim_name="batch")

for kind in kinds.split():
    keras.utils.set_random_seed(1)
    with keras.StatelessScope():
        model = kt.Transformer(13, 16, num_layers=1, d_model=8, num_heads=4, d_ff=12, dropout=0.0)
        keras.distribution.set_distribution(distribution(kind, model))
    history = compiled(model).fit(batches.repeat(), steps_per_epoch=10, epochs=2, verbose=0).history
    assert model.optimizer.iterations == 20
    if kind == "model":  # weights and moments lie where the layouts say
        layouts, moments = model.layout_map(mesh()), model.optimizer.variables[2:]
        for i, weight in enumerate(model.trainable_weights):
            for variable in (weight, *moments[2 * i : 2 * i + 2]):
                assert tuple(variable.value.sharding.spec) == layouts[weight.path].axes, variable.path
    # Under a distribution `save` makes variables, for which one process would wait for the other.
    keras.distribution.set_distribution(None)
    if rank in ("", "0"):
        model.save(f"{{folder}}/{{name}}-{{kind}}.keras")
    np.savez(f"{{folder}}/{{name}}{{rank}}-{{kind}}.npz", *model.get_weights(), **history)
"""


def free_ports(number):
    sockets = [socket.socket() for _ in range(number)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def start(program, *arguments, **environment):
    environment = {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "-1", **environment}
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)], env={**os.environ, **environment},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def start_workers(*arguments):
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(2)]}
    configs = [{"cluster": cluster, "task": {"type": "worker", "index": i}} for i in range(2)]
    return [
        start(TENSORFLOW, *arguments, KERAS_BACKEND="tensorflow", TF_CONFIG=json.dumps(config))
        for config in configs
    ]


def start_jax(folder, name, kinds, devices, address="", rank=""):
    flags = f"--xla_force_host_platform_device_count={devices}"
    return start(JAX, folder, name, kinds, address, rank, KERAS_BACKEND="jax", XLA_FLAGS=flags)


def finish(processes):
    """Standard error of each process, none of which outlives the limit."""
    try:
        return [process.communicate(timeout=LIMIT)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()


def check_success(processes):
    for process, errors in zip(processes, finish(processes), strict=True):
        assert process.returncode == 0, errors[-3000:]


def saved(path):
    """Weights, losses and metrics that a program left."""
    with np.load(path) as file:
        return dict(file)


def check_equal(expected, path, keys=None):
    found = saved(path)
    for key in keys or expected.keys() | found.keys():
        np.testing.assert_allclose(found[key], expected[key], rtol=0, atol=1e-5, err_msg=f"{path.name} {key}")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What one process's training left, and two workers' that nothing happened to."""
    folder = tmp_path_factory.mktemp("undisturbed")
    check_success([start(TENSORFLOW, folder, "one", 0), *start_workers(folder, "worker", 0)])
    return folder


@pytest.mark.slow
def test_two_workers_take_the_steps_of_one_process(undisturbed):
    one = saved(undisturbed / "one.npz")
    for name in ("worker0", "worker1"):
        check_equal(one, undisturbed / f"{name}.npz")


@pytest.mark.slow
def test_dead_worker_stops_the_other_and_training_resumes(undisturbed, tmp_path):
    processes = start_workers(tmp_path, "disturbed", 0, "die")
    chief_errors, dead_errors = finish(processes)
    assert processes[1].returncode == -signal.SIGKILL, dead_errors[-3000:]
    assert processes[0].returncode == 1 and "UnavailableError" in chief_errors, chief_errors[-3000:]
    assert [path.name for path in tmp_path.iterdir()] == ["1.keras"]  # by the chief alone, of the whole epoch

    check_success(start_workers(tmp_path, "resumed", 1))
    one = saved(undisturbed / "one.npz")
    weights = [key for key in one if key.startswith("arr_")]
    for name in ("resumed0", "resumed1"):
        check_equal(one, tmp_path / f"{name}.npz", weights)


def test_a_worker_without_a_cluster_is_refused(monkeypatch):
    from keras_transformer.training.replicas import MultiWorker

    for config in (None, "{}", '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}'):
        monkeypatch.delenv("TF_CONFIG", raising=False)
        if config:
            monkeypatch.setenv("TF_CONFIG", config)
        with pytest.raises(ValueError, match=f"TF_CONFIG={re.escape(repr(config))}"):
            MultiWorker()


@pytest.fixture(scope="module")
def one_on_jax(tmp_path_factory):
    """What training on one device left, and on eight, split by rows and by weights."""
    folder = tmp_path_factory.mktemp("jax")
    check_success([start_jax(folder, "eight", "one data model", 8)])
    return folder


@pytest.mark.slow
def test_eight_devices_take_the_steps_of_one(one_on_jax):
    one = saved(one_on_jax / "eight-one.npz")
    for kind in ("data", "model"):
        check_equal(one, one_on_jax / f"eight-{kind}.npz")


@pytest.mark.slow
def test_two_processes_of_two_devices_equal_one_device(one_on_jax, tmp_path):
    address = f"127.0.0.1:{free_ports(1)[0]}"
    check_success([start_jax(tmp_path, "process", "data model", 2, address, rank) for rank in range(2)])
    one = saved(one_on_jax / "eight-one.npz")
    for kind in ("data", "model"):
        for rank in range(2):
            check_equal(one, tmp_path / f"process{rank}-{kind}.npz")
        model = keras.models.load_model(tmp_path / f"process-{kind}.keras")
        assert isinstance(model, kt.Transformer)
        for i, weight in enumerate(model.get_weights()):
            np.testing.assert_allclose(weight, one[f"arr_{i}"], rtol=0, atol=1e-5)
