"""TensorFlow's own search for NaN and infinity finds none in a model that masks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import numpy as np
import tensorflow as tf

import keras_transformer as kt
from keras_transformer import layers

tf.debugging.enable_check_numerics()
ids = np.array([[5, 7, 0], [4, 0, 0]])
model = kt.Transformer(20, num_layers=1, d_model=8, num_heads=2, d_ff=16)
model.compile("adam", kt.MaskedCrossentropy(), metrics=[kt.MaskedAccuracy(), kt.Perplexity()])
model.fit({"source": ids, "target": ids}, ids, verbose=0)
x = np.ones((1, 4, 8), "float32")
layers.MultiHeadAttention(2, 4)(x, x, use_causal_mask=True)
attention = layers.LuongAttention()
attention(x, x, memory_mask=np.array([[True, True, False, False]]))
print("no alarm")
"""


@pytest.mark.tensorflow
@pytest.mark.slow
def test_masks_raise_no_alarm():
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True)
    assert done.stdout.strip().endswith("no alarm"), done.stderr[-2000:]
