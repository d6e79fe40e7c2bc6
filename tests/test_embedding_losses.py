"""Losses of embedders: worked examples, sentence-transformers' numbers, and what is refused."""

import keras
import numpy as np
import pytest

from keras_transformer.layers import Embeddings, Encoder, LearnedPositions
from keras_transformer.losses import CosineLoss, InBatchNegatives, Matryoshka, TripletLoss
from keras_transformer.metrics import MatchAccuracy
from keras_transformer.models import EncoderModel, TextGroups

VECTORS = np.random.default_rng(0).normal(size=(5, 3, 8)).astype("float32")
SCORES = np.random.default_rng(1).uniform(-1, 1, 5).astype("float32")


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def found(loss, vectors=VECTORS):
    return float(loss(SCORES, vectors))


def of_rows(logits):
    """The mean cross-entropy of rows whose right column has the number of the row."""
    return np.mean([np.log(np.exp(row).sum()) - row[i] for i, row in enumerate(logits)])


@pytest.mark.parametrize("symmetric", [False, True])
def test_each_text_is_to_find_its_match_among_all_matches_and_wrong_texts(symmetric):
    first, second, wrong = unit(VECTORS.astype("float64")).swapaxes(0, 1)
    expected = of_rows(7.0 * first @ np.concatenate([second, wrong]).T)
    if symmetric:
        expected = (expected + of_rows(7.0 * second @ first.T)) / 2
    assert found(InBatchNegatives(7.0, symmetric)) == pytest.approx(expected, abs=1e-5)


def test_triplets_have_a_margin_and_a_finite_gradient_where_texts_are_equal():
    first, second, wrong = VECTORS.astype("float64").swapaxes(0, 1)
    distances = [np.linalg.norm(first - other, axis=-1) for other in (second, wrong)]
    expected = np.mean(np.maximum(0, distances[0] - distances[1] + 0.5))
    assert found(TripletLoss(0.5)) == pytest.approx(expected, abs=1e-5)
    layer = keras.layers.Dense(2, use_bias=False)
    model = keras.Sequential([keras.Input((3, 8)), layer])
    model.compile("sgd", TripletLoss())
    model.fit(VECTORS[:, :1].repeat(3, axis=1), SCORES, verbose=0)
    assert np.all(np.isfinite(keras.ops.convert_to_numpy(layer.kernel)))


def test_scores_are_cosines():
    first, second, _ = unit(VECTORS.astype("float64")).swapaxes(0, 1)
    expected = np.mean((np.sum(first * second, axis=-1) - SCORES) ** 2)
    assert found(CosineLoss(), VECTORS[:, :2]) == pytest.approx(expected, abs=1e-5)


def test_matryoshka_is_the_sum_over_widths():
    inner = InBatchNegatives()
    expected = 2 * found(inner, VECTORS[..., :3]) + 0.5 * found(inner)
    loss = Matryoshka(inner, [3, 8], [2, 0.5])
    assert found(loss) == pytest.approx(expected, rel=1e-5)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(loss))
    assert found(again) == pytest.approx(expected, rel=1e-5) and again.get_config() == loss.get_config()


def test_accuracy_counts_the_texts_that_find_their_match():
    vectors = np.eye(4)[[[0, 0], [1, 2], [2, 1], [3, 3]]]
    nearest, all_of_them = MatchAccuracy(), MatchAccuracy(k=4)
    for metric in (nearest, all_of_them):
        metric.update_state(np.zeros(4), vectors)
    assert (float(nearest.result()), float(all_of_them.result())) == (0.5, 1.0)
    collapsed = MatchAccuracy()
    collapsed.update_state(np.zeros(4), np.ones((4, 2, 3)))
    assert float(collapsed.result()) == 0.0


@pytest.mark.parametrize(
    ("make", "vectors", "message"),
    [
        (lambda: InBatchNegatives(0.0), None, "`scale`"),
        (lambda: TripletLoss(-1), None, "`margin`"),
        (lambda: Matryoshka("loss", [2]), None, "`loss` must be"),
        (lambda: Matryoshka(CosineLoss(), []), None, "`dimensions` must be a list"),
        (lambda: Matryoshka(CosineLoss(), [2], [1, 2]), None, "`weights` must have"),
        (lambda: Matryoshka(CosineLoss(), [9]), VECTORS[:, :2], "at most the width"),
        (CosineLoss, VECTORS, "2 parts"),
        (TripletLoss, VECTORS[:, :2], "3 parts"),
        (InBatchNegatives, VECTORS[:, :1], "2 parts or more"),
        (InBatchNegatives, VECTORS[:, 0], "2 parts or more"),
    ],
)
def test_what_does_not_fit_is_refused(make, vectors, message):
    with pytest.raises(ValueError, match=message):
        make()(SCORES, vectors)


def test_groups_have_the_vectors_of_the_encoder_and_train_it():
    keras.utils.set_random_seed(0)
    encoder = EncoderModel(
        Embeddings(40, 8, LearnedPositions(6)), Encoder(1, 2, 8, dropout=0.0), cls_id=1, sep_id=2
    )
    ids = np.random.default_rng(0).integers(3, 40, (6, 2, 6))
    ids[:3, :, 4:] = 0
    groups = TextGroups(encoder, "max")
    vectors = keras.ops.convert_to_numpy(groups({"token_ids": ids}))
    for i in range(2):
        expected = encoder.embed({"token_ids": ids[:, i]}, "max")
        np.testing.assert_allclose(vectors[:, i], expected, atol=1e-6)
    groups.compile("adam", InBatchNegatives(), metrics=[MatchAccuracy()])
    history = groups.fit({"token_ids": ids}, np.zeros(6), epochs=12, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]
    again = TextGroups.from_config(groups.get_config())
    again.set_weights(groups.get_weights())
    np.testing.assert_allclose(again({"token_ids": ids}), groups({"token_ids": ids}), atol=1e-6)
    with pytest.raises(ValueError, match="`encoder` must be"):
        TextGroups(keras.layers.Dense(2))


@pytest.mark.slow
def test_numbers_are_those_of_sentence_transformers():
    losses, torch = pytest.importorskip("sentence_transformers.losses"), pytest.importorskip("torch")
    parts = [torch.tensor(each.copy()) for each in VECTORS.swapaxes(0, 1)]
    by_class = {
        losses.MultipleNegativesRankingLoss: (InBatchNegatives(), 3),
        losses.TripletLoss: (TripletLoss(), 3),
        losses.CosineSimilarityLoss: (CosineLoss(), 2),
    }
    for loss_class, (loss, count) in by_class.items():
        given = parts[:count]

        class Texts(torch.nn.Module):
            """Takes a number of a part, and returns its vectors."""

            def forward(self, features, given=given):
                return {"sentence_embedding": given[features["part"]]}

        there = loss_class(Texts())([{"part": i} for i in range(count)], torch.tensor(SCORES))
        assert found(loss, VECTORS[:, :count]) == pytest.approx(float(there), abs=1e-5)
