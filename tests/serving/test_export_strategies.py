"""Exports of every strategy, run where neither this package nor XLA is: what Python writes is what they write."""

import json
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "models"))
from searches import CONSTRAINTS, STRATEGIES

from keras_transformer.decoding import Sample
from keras_transformer.models import Transformer
from keras_transformer.serving import Translator
from keras_transformer.serving.saved_model import write_saved_model
from keras_transformer.text import ByteTokenizer

TEXTS = ["A dog runs.", "", "Zwei Hunde rennen über grüne Wiesen.", "x"]

# TensorFlow alone, with XLA disabled as in a stock server.
ALONE = """
import ctypes, json, pathlib, sys
import tensorflow as tf
import tensorflow_text

library = ctypes.CDLL(str(pathlib.Path(tf.__file__).with_name("libtensorflow_cc.so.2")))
library._ZN10tensorflow21DisableXlaCompilationEv()
signatures = tf.saved_model.load(sys.argv[1]).signatures
texts = tf.constant(json.loads(sys.argv[2]))
found = {}
for name, function in signatures.items():
    outputs = function(text=texts)
    found[name] = [[t.decode() for t in outputs["translation"].numpy()], outputs["score"].numpy().tolist()]
assert "keras_transformer" not in sys.modules
print("RESULT" + json.dumps(found))
"""


def exported(pairs, folder):
    """One SavedModel with a signature for each pair of a strategy and constraints, and their translators."""
    model = Transformer(260, num_layers=1, d_model=16, num_heads=2, d_ff=32, dropout=0.0)
    rng = np.random.default_rng(8)
    for weight in model.weights:
        noise = rng.normal(size=weight.shape, scale=0.45)
        weight.assign(noise + 1.0 if weight.path.endswith("gamma") else noise)
    plain = Translator(model, ByteTokenizer(), max_length=9)
    translators = {
        f"{name}_{names}".replace(" ", "_"): plain.searching(STRATEGIES[name], CONSTRAINTS[names])
        for name, names in pairs
    }
    module = tf.Module()
    module.weights = [weight.value for weight in model.weights]
    module.tokenizers = [plain.source_tokenizer]
    signatures = {
        name: each._default_function(False).get_concrete_function() for name, each in translators.items()
    }
    write_saved_model(module, signatures, folder, xla=False)
    return translators


def expected_of(translator):
    """What Python writes, and its scores."""
    outputs = translator._default_function(False)(tf.constant(TEXTS))
    return [text.decode() for text in outputs["translation"].numpy()], outputs["score"].numpy()


# Plain beam search is diverse search of one group, and plain sampling the cut one with nothing cut.
@pytest.mark.slow
@pytest.mark.parametrize("constraints", ["all"])
def test_every_strategy_writes_the_same_in_an_export(constraints, tmp_path):
    translators = exported(
        [(name, constraints) for name in ("greedy", "diverse", "cut sample")], tmp_path / "1"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", ALONE, str(tmp_path / "1"), json.dumps(TEXTS)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.split("RESULT")[1])
    assert found.keys() == translators.keys()
    for name, translator in translators.items():
        texts, scores = expected_of(translator)
        assert found[name][0] == texts and texts[1] == "" and texts[0] and texts[2]
        np.testing.assert_allclose(found[name][1], scores, rtol=1e-4)


@pytest.mark.slow
def test_each_process_draws_other_samples(tmp_path):
    """Also if a seed was set when the model was exported. Each load has operations of its own, as each process has."""
    keras.utils.set_random_seed(1)
    model = Transformer(260, num_layers=1, d_model=8, num_heads=2, d_ff=16)
    translator = Translator(model, ByteTokenizer(), strategy=Sample(), max_length=9)
    module = tf.Module()
    module.weights = [weight.value for weight in model.weights]
    module.tokenizers = [translator.source_tokenizer]
    function = translator._default_function(False).get_concrete_function()
    write_saved_model(module, {"serving_default": function}, tmp_path / "1", xla=False)
    first, second = (tf.saved_model.load(str(tmp_path / "1")) for _ in range(2))
    scores = [
        [
            each.signatures["serving_default"](text=tf.constant(["a"]))["score"].numpy().item()
            for _ in range(3)
        ]
        for each in (first, second)
    ]
    assert len(set(scores[0] + scores[1])) == 6
