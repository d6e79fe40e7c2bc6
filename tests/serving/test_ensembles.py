"""Translators joined to one: its answers, its folder, its export, and what does not fit together."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from alone import run_alone
from contracts import refuses

from keras_transformer.decoding import Beam
from keras_transformer.explain import explain_text
from keras_transformer.layers import LearnedPositions
from keras_transformer.models import Transformer
from keras_transformer.plots import attention
from keras_transformer.runs import change_vocabulary
from keras_transformer.serving import Translator
from keras_transformer.text import ByteTokenizer


def small(seed, tokenizer=None, **arguments):
    keras.utils.set_random_seed(seed)
    model = Transformer(260, num_layers=1, d_model=8, num_heads=2, d_ff=16)
    return Translator(model, tokenizer or ByteTokenizer(), max_length=9, **arguments)


@pytest.fixture(scope="module")
def joined():
    return Translator.ensemble([small(1, strategy=Beam(2, n_best=2)), small(2)])


TEXTS = ["a dog", "two dogs run", ""]


@pytest.mark.slow  # tests/models/test_ensemble.py has a quick one
def test_scores_are_those_of_the_mean_probabilities(joined):
    def scores(translator):
        text, target = tf.constant(TEXTS[:1]), tf.constant(["abc"])
        return translator.signatures([1]).score(text, target)["token_scores"][0]

    each = [scores(joined.changed(model=model)) for model in joined.model.models]
    np.testing.assert_allclose(scores(joined), np.log(np.mean(np.exp(each), axis=0)), rtol=1e-5)


@pytest.mark.slow
def test_saved_ensemble_translates_the_same(joined, tmp_path):
    joined.save(tmp_path / "saved")
    loaded = Translator.load(tmp_path / "saved")
    assert (loaded.strategy, loaded.max_length) == (Beam(2, n_best=2), 9), "those of the first translator"
    assert loaded.translate(TEXTS) == joined.translate(TEXTS)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_export_needs_tensorflow_alone(precision, joined, tmp_path):
    export = joined.export(tmp_path / "model", precision=precision)
    result = run_alone(export, TEXTS, False, tmp_path, "serving_default")["serving_default"]
    assert len(result["translation"]) == len(TEXTS) and result["translation"][-1] == ""
    if precision == "float32":
        assert result["translation"] == joined.translate(TEXTS)
    else:
        own = joined.answer(TEXTS)["score"]
        np.testing.assert_allclose(result["score"], own, rtol=0.1, atol=0.1)


@pytest.mark.parametrize(
    ("translators", "message"),
    [
        (lambda: small(1), "must be a list of at least two translators"),
        (lambda: [small(1)], "must be a list of at least two translators"),
        (lambda: [small(1), small(2, source_start=(4,))], "the same ids around texts"),
    ],
)
def test_translators_that_do_not_fit_are_refused(translators, message):
    refuses(message, Translator.ensemble, translators())


def test_fewer_positions_lower_the_limit_of_the_source():
    model = Transformer(260, num_layers=1, d_model=8, num_heads=2, d_ff=16, positions=LearnedPositions(12))
    short = Translator(model, ByteTokenizer(), max_source_length=12)
    assert Translator.ensemble([small(1), short]).max_source_length == 12


def test_only_one_model_gets_another_vocabulary(joined):
    refuses("must have one model, not an `Ensemble`", change_vocabulary, joined, ByteTokenizer())


def test_other_tokenizers_are_refused(translator):
    refuses(r"Train translator 2 .* first=\d+, translator_2=260", Translator.ensemble, [translator, small(1)])


def test_pages_and_explanations_need_one_model(joined):
    refuses(r"encoder-decoder.*Ensemble", attention, joined, "a dog")
    refuses("`Translator` with an `EncoderDecoder`", explain_text, joined, "a dog")
