"""`generate` after every change of a model, LoRA and int8 among them; and no warning of it in ordinary use."""

import itertools

import keras
import numpy as np
import pytest
from contracts import STEP_IN_XLA, as_numpy, assert_close, randomized

from keras_transformer.decoding import Beam, Greedy, Sample
from keras_transformer.execution import native
from keras_transformer.losses import MaskedCrossentropy
from keras_transformer.models import Transformer

VOCAB = 13
SOURCE = np.array([[5, 7, 12, 4, 3], [8, 4, 11, 3, 0], [6, 3, 0, 0, 0]], "int32")
TARGET = np.array([[2, 5, 9, 10], [2, 7, 3, 0], [2, 4, 6, 3]], "int32")
INPUTS = {"source": SOURCE, "target": TARGET}


def small():
    return randomized(Transformer(VOCAB, num_layers=1, d_model=6, num_heads=3, d_ff=7, dropout=0.0))


def fit(model, optimizer=None):
    optimizer = optimizer or keras.optimizers.Adam(0.1)
    model.compile(optimizer, MaskedCrossentropy(), jit_compile=STEP_IN_XLA)
    model.fit(INPUTS, TARGET, epochs=2, verbose=0)


def written(model, **arguments):
    return model.generate(SOURCE, Greedy(), 5, jit_compile=False, **arguments)


def check_written_is_eager(model):
    found, eager = written(model), model.search(SOURCE, Greedy(), 5)
    np.testing.assert_array_equal(as_numpy(found.tokens), as_numpy(eager.tokens))
    assert_close(found.scores, eager.scores, 1e-4)
    return as_numpy(found.scores)


@pytest.mark.slow
def test_generate_follows_every_change_of_the_model():
    """The functions that it compiled are of the model as it was."""
    model = small()
    scores = [check_written_is_eager(model)]
    model.encoder.layers[0].feed_forward.outer.enable_lora(2)
    fit(model)
    scores.append(check_written_is_eager(model))
    model.quantize("int8")
    scores.append(check_written_is_eager(model))
    fit(model)  # trains the biases, the norms and the adapters
    scores.append(check_written_is_eager(model))
    model.target.tokens.scale *= 2.0
    model.compile("sgd", MaskedCrossentropy())
    scores.append(check_written_is_eager(model))
    for old, new in itertools.pairwise(scores):
        assert np.abs(new - old).max() > 1e-4


@pytest.mark.slow
@pytest.mark.tensorflow
def test_ordinary_use_of_generate_gives_no_warning():
    """TensorFlow warns of functions that it traces again and again."""
    import logging

    messages, handler = [], logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    logger = logging.getLogger("tensorflow")
    logger.addHandler(handler)
    try:
        model = small()
        strategies = [Greedy(), Beam(2), Beam(3, n_best=2), Sample(seed=1), Sample(0.5, top_k=3), Beam(4)]
        for strategy in strategies:
            model.generate(SOURCE, strategy, 2, jit_compile=False)
        for length in (1, 2, 3, 4, 5):
            model.generate(SOURCE[:2, :length], Greedy(), 2, jit_compile=False)
        for _ in range(3):
            native.compiled(small().encode, model, False)(SOURCE)
    finally:
        logger.removeHandler(handler)
    assert not messages
