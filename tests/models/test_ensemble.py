"""An ensemble: the mean of the probabilities, one search over it, and the models that do not fit together."""

import functools

import keras
import numpy as np
import pytest
from cases import PAIR, SOURCE, T5_PAIR, TARGET, gpt2, recurrent, t5, transformer, writing_ensemble
from contracts import as_numpy, assert_close, refuses
from reference import log_softmax

from keras_transformer.decoding import Beam, Greedy
from keras_transformer.execution.inference import has_int8_weights
from keras_transformer.layers import LearnedPositions
from keras_transformer.models import Ensemble, Transformer


@functools.cache
def shared(seed=0, **arguments):
    """A model that no test changes."""
    return transformer(seed, **arguments)


def mean_log_probs(models, inputs):
    """The logarithms of the mean probabilities, by NumPy in float64."""
    return np.log(np.mean([np.exp(log_softmax(as_numpy(model(inputs)))) for model in models], axis=0))


@pytest.mark.slow
def test_logits_are_the_logarithms_of_the_mean_probabilities():
    models = [shared(0), transformer(1, d_model=9, num_layers=1), recurrent(2)]
    found = as_numpy(Ensemble(models)(PAIR))
    assert_close(found, mean_log_probs(models, PAIR), 1e-5)
    assert_close(np.exp(found).sum(axis=-1), np.ones(TARGET.shape), 1e-5)


@pytest.mark.slow
def test_alignments_are_the_mean():
    model = writing_ensemble()
    target = TARGET[:, 1:]
    found = model.score(SOURCE, target)
    expected = [each.score(SOURCE, target).alignments for each in model.models]
    assert_close(found.alignments, np.mean([as_numpy(each) for each in expected], axis=0), 1e-6)


@pytest.mark.slow
def test_saved_int8_ensemble_is_the_same(tmp_path):
    model = Ensemble([transformer(seed, num_layers=1) for seed in (0, 1)])
    model.quantize("int8")
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert all(map(has_int8_weights, again.models))
    assert_close(again(PAIR), model(PAIR), 1e-6)


def test_some_int8_models_are_refused():
    models = [transformer(0), transformer(1)]
    models[1].quantize("int8")
    refuses(r"all have int8 weights, or none.*\[False, True\]", Ensemble, models)


def test_an_ensemble_is_built_when_it_is_made():
    models = [transformer(0), transformer(1)]
    assert Ensemble(models).count_params() == 2 * models[0].count_params()


@pytest.mark.slow
def test_ensemble_is_quantized_as_a_whole():
    model, expected = writing_ensemble(), as_numpy(writing_ensemble()(PAIR))
    model.quantize("int8")
    assert all(map(has_int8_weights, model.models))
    assert np.abs(as_numpy(model(PAIR)) - expected).max() < 0.1 * np.abs(expected).max()
    assert model.generate(SOURCE, Greedy(), max_length=4).tokens.shape == (3, 1, 4)


@pytest.mark.slow
def test_frozen_model_stays_as_it_is():
    models = [transformer(seed, num_layers=1) for seed in (0, 1)]
    models[0].trainable = False
    model = Ensemble(models)
    before = [[as_numpy(weight) for weight in each.weights] for each in models]
    again = type(model).from_config(model.get_config())
    assert [each.trainable for each in again.models] == [False, True]
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    loss = model.fit(PAIR, TARGET, verbose=0).history["loss"]
    assert np.isfinite(loss).all()
    assert all(
        (as_numpy(weight) == old).all() for weight, old in zip(models[0].weights, before[0], strict=True)
    )
    assert any(
        (as_numpy(weight) != old).any() for weight, old in zip(models[1].weights, before[1], strict=True)
    )


@pytest.mark.slow
def test_attention_scores_are_those_of_each_model():
    models = [shared(0), shared(1, num_layers=1)]
    logits, scores = Ensemble(models)(PAIR, return_attention_scores=True)
    assert_close(logits, Ensemble(models)(PAIR), 1e-6)
    for model, found in zip(models, scores, strict=True):
        _, expected = model(PAIR, return_attention_scores=True)
        assert_close(found["cross"][-1], expected["cross"][-1], 1e-6)


@pytest.mark.slow
def test_shorter_positions_limit_the_output():
    model = Ensemble([transformer(0, positions=LearnedPositions(length)) for length in (7, 9)])
    assert (model.max_positions, model.max_source_positions) == (7, 7)
    assert model.generate(SOURCE).tokens.shape[-1] <= 7
    refuses("within the model's 7 positions", model.score, SOURCE, np.full((3, 8), 5))


@pytest.mark.slow
def test_models_of_different_families_write_one_text():
    ids = {"bos_id": 0, "eos_id": 1}
    model = Ensemble([t5(0), transformer(1, vocabularies=(13,), **ids)])
    assert_close(np.exp(as_numpy(model(T5_PAIR))).sum(axis=-1), np.ones(T5_PAIR["target"].shape), 1e-5)
    assert model.generate(T5_PAIR["source"], Beam(2), max_length=5).tokens.shape == (3, 1, 5)


@pytest.mark.slow
def test_clone_and_subclass_have_the_weights_of_all_models():
    model = Ensemble([transformer(0, name="transformer"), transformer(1, name="transformer")])
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    assert_close(clone(PAIR), model(PAIR), 1e-6)


def test_layer_that_a_subclass_added_is_built():
    class Shifted(Transformer):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.added = keras.layers.Dense(self.d_model)

        def encode(self, *args, **kwargs):
            memory = super().encode(*args, **kwargs)
            return memory._replace(states=self.added(memory.states))

    sizes = {"num_layers": 1, "d_model": 6, "num_heads": 2, "d_ff": 8}
    model = Ensemble([Shifted(13, **sizes), Shifted(13, **sizes)])
    assert all(each.added.built for each in model.models)
    assert model.search(SOURCE, Greedy(), 3).tokens.shape == (3, 1, 3)


def test_formats_that_a_model_refuses_are_refused(tmp_path):
    assert recurrent(0).refused_formats
    with pytest.raises(ValueError, match="no operations for the loop of an LSTM"):
        Ensemble([shared(0), recurrent(1)]).export(tmp_path / "model.tflite", format="litert")


@pytest.mark.parametrize(("make", "message"), [
    (lambda one: [], "list of at least two different"),
    (lambda one: [one], "list of at least two different"),
    (lambda one: [one, one], "list of at least two different"),
    (lambda one: one, "list of at least two different"),
    (lambda one: [one, gpt2()], "`EncoderDecoder`"),
    (lambda one: [one, transformer(1, vocabularies=(13, 12), num_layers=1)], "`target_vocab_size`.*11, 12"),
    (lambda one: [one, transformer(1, vocabularies=(14, 11), num_layers=1)], "`source_vocab_size`.*13, 14"),
    (lambda one: [one, transformer(1, bos_id=4, num_layers=1)], "`bos_id`.*2, 4"),
])  # fmt: skip
def test_models_that_do_not_fit_are_refused(make, message):
    refuses(message, Ensemble, make(shared(0)))
