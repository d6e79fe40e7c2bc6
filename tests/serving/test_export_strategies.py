"""Exports of every strategy, run where neither this package nor XLA is: what Python writes is what they write."""

import pathlib
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from alone import run_alone
from contracts import randomized

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "models"))
from searches import CONSTRAINTS, STRATEGIES

from keras_transformer.decoding import Sample
from keras_transformer.models import Transformer
from keras_transformer.serving import Translator
from keras_transformer.serving.graph.saved_model import write_saved_model
from keras_transformer.text import ByteTokenizer

TEXTS = ["A dog runs.", "", "Zwei Hunde rennen über grüne Wiesen.", "x"]


def exported(pairs, folder):
    """One SavedModel with a signature for each pair of a strategy and constraints, and their translators."""
    model = Transformer(260, num_layers=1, d_model=16, num_heads=2, d_ff=32, dropout=0.0)
    randomized(model, 8, 0.45)
    plain = Translator(model, ByteTokenizer(), max_length=9)
    translators = {
        f"{name}_{names}".replace(" ", "_"): plain.changed(
            strategy=STRATEGIES[name], constraints=CONSTRAINTS[names]
        )
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


# Plain beam search is diverse search of one group, and plain sampling the cut one with nothing cut.
@pytest.mark.slow
@pytest.mark.parametrize("constraints", ["all"])
def test_every_strategy_writes_the_same_in_an_export(constraints, tmp_path):
    translators = exported(
        [(name, constraints) for name in ("greedy", "diverse", "cut sample")], tmp_path / "1"
    )
    answers = run_alone(tmp_path / "1", TEXTS, False, tmp_path, *translators)
    for name, translator in translators.items():
        found = answers[name]
        expected = translator._default_function(False)(tf.constant(TEXTS))
        texts = [text.decode() for text in expected["translation"].numpy()]
        assert found["translation"] == texts and texts[1] == "" and texts[0] and texts[2]
        np.testing.assert_allclose(found["score"], expected["score"], rtol=1e-4)


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
