import keras
import numpy as np
import pytest
from contracts import as_numpy, normal
from reference import log_softmax

from keras_transformer.losses import MaskedCrossentropy
from keras_transformer.metrics import MaskedAccuracy, Perplexity

TARGETS = np.array([[3, 1, 2, 0, 0], [1, 0, 0, 0, 0]], "int32")


def logits_that_say(ids, vocab_size=5):
    return 4 * np.eye(vocab_size, dtype="float32")[ids]


def test_accuracy_counts_real_tokens_alone():
    said = np.array([[3, 2, 2, 0, 1], [1, 0, 4, 0, 0]])  # right, wrong, right; right
    metric = MaskedAccuracy()
    metric.update_state(TARGETS, logits_that_say(said))
    np.testing.assert_allclose(as_numpy(metric.result()), 3 / 4)


def test_accuracy_of_batches_weighs_tokens_and_not_batches():
    metric = MaskedAccuracy()
    metric.update_state(TARGETS[:1], logits_that_say(np.array([[3, 2, 4, 0, 0]])))  # 1 of 3
    metric.update_state(TARGETS[1:], logits_that_say(np.array([[1, 0, 0, 0, 0]])))  # 1 of 1
    np.testing.assert_allclose(as_numpy(metric.result()), 2 / 4)


def test_reset_forgets():
    metric = MaskedAccuracy()
    metric.update_state(TARGETS, logits_that_say(TARGETS))
    metric.reset_state()
    metric.update_state(TARGETS, logits_that_say(TARGETS + 1, vocab_size=7))
    assert as_numpy(metric.result()) == 0.0


def test_perplexity_of_indifference_is_the_vocabulary():
    metric = Perplexity()
    metric.update_state(TARGETS, np.zeros((2, 5, 11), "float32"))
    np.testing.assert_allclose(as_numpy(metric.result()), 11, rtol=1e-5)


def test_perplexity_is_the_exponential_of_the_mean_over_all_tokens():
    scores = normal(2, 5, 7, scale=2.0)
    metric = Perplexity()
    metric.update_state(TARGETS[:1], scores[:1])
    metric.update_state(TARGETS[1:], scores[1:])
    picked = np.take_along_axis(log_softmax(scores.astype("float64")), TARGETS[..., None], axis=2)[..., 0]
    np.testing.assert_allclose(as_numpy(metric.result()), np.exp(-picked[TARGETS != 0].mean()), rtol=1e-5)


def test_sample_weights_weigh_tokens():
    said = np.array([[3, 2, 2, 0, 1], [1, 0, 4, 0, 0]])
    metric = MaskedAccuracy()
    metric.update_state(TARGETS, logits_that_say(said), sample_weight=np.array([1.0, 5.0], "float32"))
    np.testing.assert_allclose(as_numpy(metric.result()), (1 + 1 + 5) / (3 + 5))


@pytest.mark.usefixtures("float64")
def test_a_float64_metric_sums_in_float64():
    scores = normal(2, 5, 7, scale=2.0).astype("float64")
    metric = Perplexity(dtype="float64")
    metric.update_state(TARGETS, scores)
    picked = np.take_along_axis(log_softmax(scores), TARGETS[..., None], axis=2)[..., 0]
    found = keras.ops.convert_to_numpy(metric.result())
    np.testing.assert_allclose(found, np.exp(-picked[TARGETS != 0].mean()), rtol=1e-13)


def test_a_bfloat16_metric_sums_in_float32():
    assert MaskedAccuracy(dtype="bfloat16").total.dtype == "float32"


@pytest.mark.parametrize(("metric", "empty"), [(MaskedAccuracy(), 0.0), (Perplexity(), 1.0)])
def test_padding_alone_gives_a_number(metric, empty):
    metric.update_state(np.zeros((2, 3), "int32"), normal(2, 3, 5))
    assert as_numpy(metric.result()) == empty


@pytest.mark.slow
def test_compile_and_evaluate_report_both():
    model = keras.Sequential([keras.Input((None,), dtype="int32"), keras.layers.Embedding(11, 7)])
    model.compile(loss=MaskedCrossentropy(), metrics=[MaskedAccuracy(), Perplexity()], jit_compile=False)
    ids = np.array([[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]], "int32")
    table = normal(11, 7)
    model.set_weights([table])
    found = model.evaluate(ids, TARGETS, batch_size=1, verbose=0, return_dict=True)
    right = (table[ids].argmax(axis=-1) == TARGETS)[TARGETS != 0]
    np.testing.assert_allclose(found["accuracy"], right.mean(), rtol=1e-5)
    picked = np.take_along_axis(log_softmax(table[ids]), TARGETS[..., None], axis=2)[..., 0]
    np.testing.assert_allclose(found["perplexity"], np.exp(-picked[TARGETS != 0].mean()), rtol=1e-4)
