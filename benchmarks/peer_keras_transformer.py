"""The row of this library in the benchmark harness (see README.md): one task, one variant, one process.

usage: peer_keras_transformer.py small|base TASK --variant float32|mixed_bfloat16|int8[-xla][-intra1]

Tasks: T1 trains; T2, T3, T4a and T4b decode; T5-128, T5-512 and T5-2048 are one attention layer.
`-intra1` gives an operation one thread.
"""

import os
import sys
import time

sys.path.insert(0, os.environ["BENCH_DIR"])
import common

start = time.perf_counter()
import keras
import numpy as np
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.decoding import Beam, Greedy, MinLength

IMPORT_SECONDS = time.perf_counter() - start
tf.config.threading.set_intra_op_parallelism_threads(common.THREADS)
tf.config.threading.set_inter_op_parallelism_threads(common.THREADS)


class StepTimer(keras.callbacks.Callback):
    """Measures from the beginning of the first batch to the end of the last one: `fit` can stall after that."""

    def on_train_batch_begin(self, batch, logs=None):
        if batch == 0:
            self.began = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        self.seconds = time.perf_counter() - self.began


def build(config, task, variant):
    """Returns the function that runs one repetition of a task, and facts to print."""
    variant, _, intra = variant.partition("-intra")
    if intra:
        tf.config.threading.set_intra_op_parallelism_threads(int(intra))
    precision, _, xla = variant.partition("-")
    info = {
        "peer": f"keras_transformer {kt.__version__}",
        "keras": keras.__version__,
        "tf": tf.__version__,
        "import_s": round(IMPORT_SECONDS, 2),
    }
    if task == "T1":
        return training(config, precision, bool(xla), info), info
    if task in ("T2", "T3", "T4a", "T4b"):
        return decoding(config, task, precision, bool(xla), info), info
    if task.startswith("T5"):
        return attention(task, bool(xla)), info
    raise SystemExit(f"no such task here: {task}")


def transformer(config, precision):
    """Makes the model of a configuration."""
    return kt.Transformer(
        config["vocab"],
        num_layers=config["enc"],
        d_model=config["d"],
        num_heads=config["heads"],
        d_ff=config["ff"],
        dropout=common.DROPOUT,
        pad_id=common.PAD,
        bos_id=common.BOS,
        eos_id=common.EOS,
        dtype=precision,
    )


def training(config, precision, xla, info):
    """T1: training steps through `model.fit`."""
    model = transformer(config, precision)
    info["params"] = model.count_params()
    model.compile(
        optimizer=kt.training.Adam(1e-4, beta_1=0.9, beta_2=0.98, epsilon=1e-9),
        loss=kt.MaskedCrossentropy(pad_id=common.PAD),
        jit_compile=xla,
    )
    source, target, labels, _, _ = common.train_data(config)
    steps = config["train_steps"]

    def repeated(array):
        return np.concatenate([array] * steps)

    timer = StepTimer()

    def repetition():
        model.fit(
            {"source": repeated(source), "target": repeated(target)},
            repeated(labels),
            batch_size=len(source),
            verbose=0,
            shuffle=False,
            callbacks=[timer],
        )
        return steps * target.size, timer.seconds

    return repetition


def decoding(config, task, precision, xla, info):
    """T2, T3: greedy search, T4: beam search; one `generate` with as many new tokens for every row."""
    sizes = common.TASKS[task]
    strategy = Greedy() if sizes["beam"] == 1 else Beam(width=sizes["beam"])
    keras.utils.set_random_seed(0)  # the same weights for each variant: `check` compares them
    model = transformer(config, "float32" if precision == "int8" else precision)
    info["params"] = model.count_params()
    if precision == "int8":
        model.quantize("int8")
    source = common.decode_data(config, task)

    def repetition():
        tokens = generated(model, source, strategy, sizes["new"], xla)
        info["check"] = tokens[0, 0, :8].tolist()
        return sizes["batch"] * sizes["new"]

    return repetition


def generated(model, source, strategy, length, xla):
    """Writes exactly `length` tokens for each source: NumPy int32 `(batch, 1, length)`."""
    constraints = [MinLength(length)]
    found = model.generate(source, strategy, length, jit_compile=xla, constraints=constraints)
    tokens, lengths, _ = map(keras.ops.convert_to_numpy, found)
    assert (lengths == length).all(), lengths
    return tokens


def attention(task, xla):
    """T5: one self-attention layer forward, with a padding mask."""
    sizes = common.TASKS[task]
    x, mask = map(tf.constant, common.attn_data(task))
    layer = kt.MultiHeadAttention(sizes["heads"], sizes["d"] // sizes["heads"])
    layer(x, x)
    forward = tf.function(lambda x, mask: layer(x, x, value_mask=mask, training=False), jit_compile=xla)

    def repetition():
        for _ in range(common.ATTN_REPS[task]):
            forward(x, mask).numpy()
        return common.ATTN_REPS[task]

    return repetition


if __name__ == "__main__":
    common.main(build)
