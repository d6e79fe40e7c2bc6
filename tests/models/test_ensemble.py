"""An ensemble: the mean of the probabilities, one search over it, and the models that do not fit together."""

import keras
import numpy as np
import pytest
from cases import PAIR, SOURCE, TARGET, gpt2, recurrent, transformer, writer, writing_ensemble
from contracts import as_numpy, assert_close
from reference import log_softmax
from searches import assert_same

from keras_transformer.decoding import Beam, Greedy
from keras_transformer.execution.int8 import has_int8_weights
from keras_transformer.models import Ensemble


def mean_log_probs(models, inputs):
    """The logarithms of the mean probabilities, by NumPy in float64."""
    return np.log(np.mean([np.exp(log_softmax(as_numpy(model(inputs)))) for model in models], axis=0))


def test_logits_are_the_logarithms_of_the_mean_probabilities():
    models = [transformer(0), transformer(1, d_model=9, num_layers=1), recurrent(2)]
    found = as_numpy(Ensemble(models)(PAIR))
    assert_close(found, mean_log_probs(models, PAIR), 1e-5)
    assert_close(np.exp(found).sum(axis=-1), np.ones(TARGET.shape), 1e-5)


def test_each_token_is_the_likeliest_by_the_mean():
    model = writing_ensemble()
    found = as_numpy(model.generate(SOURCE, max_length=6).tokens)[:, 0]
    alone = [as_numpy(each.generate(SOURCE, max_length=6).tokens)[:, 0] for each in model.models]
    assert all((found != tokens).any() for tokens in alone)
    for row, tokens in enumerate(found):
        for length in range(len(np.trim_zeros(tokens, "b"))):
            past = np.array([[model.bos_id, *tokens[:length]]])
            inputs = {"source": SOURCE[row : row + 1], "target": past}
            assert tokens[length] == mean_log_probs(model.models, inputs)[0, -1].argmax()


def test_two_copies_write_what_one_writes():
    one, other = writer(), writer()
    strategy = Beam(3, n_best=2)
    assert_same(Ensemble([one, other]).generate(SOURCE, strategy), one.generate(SOURCE, strategy))


def test_alignments_are_the_mean():
    model = writing_ensemble()
    target = TARGET[:, 1:]
    found = model.score(SOURCE, target)
    expected = [each.score(SOURCE, target).alignments for each in model.models]
    assert_close(found.alignments, np.mean([as_numpy(each) for each in expected], axis=0), 1e-6)


@pytest.mark.parametrize("quantized", [(0,), (0, 1)])
def test_saved_ensemble_keeps_which_models_are_int8(quantized, tmp_path):
    models = [transformer(0), transformer(1)]
    for i in quantized:
        models[i].quantize("int8")
    model = Ensemble(models)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert [has_int8_weights(each) for each in again.models] == [i in quantized for i in range(2)]
    assert_close(again(PAIR), model(PAIR), 1e-6)


def test_ensemble_is_quantized_as_a_whole():
    model, expected = writing_ensemble(), as_numpy(writing_ensemble()(PAIR))
    model.quantize("int8")
    assert all(map(has_int8_weights, model.models))
    assert np.abs(as_numpy(model(PAIR)) - expected).max() < 0.1 * np.abs(expected).max()
    assert model.generate(SOURCE, Greedy(), max_length=4).tokens.shape == (3, 1, 4)


def test_frozen_model_stays_as_it_is():
    models = [transformer(0), transformer(1)]
    models[0].trainable = False
    model = Ensemble(models)
    before = [as_numpy(weight) for weight in models[0].weights]
    again = type(model).from_config(model.get_config())
    assert [each.trainable for each in again.models] == [False, True]
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    loss = model.fit(PAIR, TARGET, verbose=0).history["loss"]
    assert np.isfinite(loss).all()
    assert all((as_numpy(weight) == old).all() for weight, old in zip(models[0].weights, before, strict=True))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda one: [], "list of at least two different"),
        (lambda one: [one], "list of at least two different"),
        (lambda one: [one, one], "list of at least two different"),
        (lambda one: one, "list of at least two different"),
        (lambda one: [one, gpt2()], "`EncoderDecoder`"),
        (lambda one: [one, transformer(1, vocabularies=(13, 12))], "`target_vocab_size`.*11, 12"),
        (lambda one: [one, transformer(1, vocabularies=(14, 11))], "`source_vocab_size`.*13, 14"),
        (lambda one: [one, transformer(1, bos_id=4)], "`bos_id`.*2, 4"),
    ],
)
def test_models_that_do_not_fit_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        Ensemble(make(transformer(0)))
