"""Texts packed into rows: all there, none across a row's end or another's, little padding."""

import keras
import numpy as np
import pytest
from contracts import check_refused, refuses
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer import layers
from keras_transformer.data import PackedRows, PackedTexts
from keras_transformer.data.packing import best_fit_decreasing
from keras_transformer.losses import MaskedCrossentropy
from keras_transformer.metrics import MaskedAccuracy
from keras_transformer.models import LanguageModel

BOS, EOS = 2, 3


def some_texts(count=40, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(4, 50, size=n).tolist() for n in rng.integers(1, 13, size=count)]


def rows_of(dataset):
    arrays = ((inputs["token_ids"], inputs["segment_ids"], targets) for inputs, targets in dataset)
    return [row for each in arrays for row in zip(*map(np.asarray, each), strict=True)]


def texts_in(rows):
    """The texts of rows, each as its inputs and its targets."""
    found = []
    for token_ids, segment_ids, targets in rows:
        real = segment_ids > 0
        assert np.all(np.diff(real.astype(int)) <= 0), "padding before a text"
        assert np.all(token_ids[~real] == 0) and np.all(targets[~real] == 0)
        for number in range(1, segment_ids.max() + 1):
            places = np.flatnonzero(segment_ids == number)
            assert len(places) and np.all(np.diff(places) == 1), "a text is not in one piece"
            found.append((token_ids[places].tolist(), targets[places].tolist()))
    return found


def test_small_texts_by_hand():
    """Of 5, 3 and 2 tokens with their beginnings: 5 alone, 3 beside 2."""
    texts = PackedTexts([[11, 12], [13, 14, 15, 16], [17]], 5, 2)
    ((inputs, targets),) = [texts.batch([0, 1])]
    assert inputs["token_ids"].tolist() == [[2, 13, 14, 15, 16], [2, 11, 12, 2, 17]]
    assert inputs["segment_ids"].tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 2, 2]]
    assert targets.tolist() == [[13, 14, 15, 16, 3], [11, 12, 3, 17, 3]]
    assert (texts.kept, texts.rows, texts.steps, texts.tokens, texts.padding) == (3, 2, 1, 10, 0.0)


def test_each_text_comes_once_an_epoch_with_its_own_targets():
    documents = some_texts()
    texts = PackedTexts(documents, 16, 4)
    for epoch in range(2):
        found = texts_in(rows_of(texts.dataset(epoch, 1)))
        assert sorted(found) == sorted(([BOS, *d], [*d, EOS]) for d in documents)
    assert texts.tokens == sum(len(d) + 1 for d in documents)
    rows = rows_of(texts.dataset(0, 1))
    assert texts.padding == pytest.approx(np.mean([segments == 0 for _, segments, _ in rows]))
    assert texts.padding < 0.1


def test_without_ends_a_text_predicts_itself_alone():
    texts = PackedTexts([[11, 12, 13], [14, 15]], 4, 1, bos_id=None, eos_id=None)
    assert texts_in(rows_of(texts.dataset(0, 1))) == [([11, 12], [12, 13]), ([14], [15])]
    with pytest.warns(UserWarning, match="Of 2 texts: 1 skipped, 0 of them longer"):
        assert PackedTexts([[11], [14, 15]], 4, 1, bos_id=None, eos_id=None).skipped == 1


def test_blank_texts_are_skipped_and_counted():
    with pytest.warns(UserWarning, match="Of 3 texts: 2 skipped.*blank"):
        texts = PackedTexts([[], [11], []], 4, 1)
    assert (texts.kept, texts.tokens) == (1, 2)


def test_a_long_text_is_cut_and_loses_nothing():
    texts = PackedTexts([list(range(11, 20)), [30]], 4, 3)
    found = sorted(texts_in(rows_of(texts.dataset(0, 1))))
    assert found == [
        ([2, 11, 12, 13], [11, 12, 13, 14]),
        ([2, 30], [30, 3]),
        ([14, 15, 16, 17], [15, 16, 17, 18]),
        ([18, 19], [19, 3]),
    ]
    assert (texts.split, texts.kept, texts.skipped) == (1, 2, 0)
    with pytest.warns(UserWarning, match="Of 2 texts: 1 skipped, 1 of them longer than `length`=4"):
        assert PackedTexts([list(range(11, 20)), [30]], 4, 3, too_long="skip").kept == 1
    message = "1 of 2 texts are longer than `length`=4 tokens; the longest has 10"
    refuses(message, PackedTexts, [list(range(11, 20)), [30]], 4, 3, too_long="error")


@pytest.mark.slow
def test_the_order_follows_from_seed_and_epoch():
    documents = some_texts(80)

    def order(seed, epoch, **arguments):
        texts = PackedTexts(documents, 16, 4, seed=seed)
        return [row[0].tolist() for row in rows_of(texts.dataset(epoch, 1, **arguments))]

    first = order(0, 0)
    assert order(0, 0) == first
    second = order(0, 1)
    assert second != first and order(1, 0) != first
    assert sorted(second) == sorted(first)
    assert order(0, 0, first_step=2) == first[8:]
    texts = PackedTexts(documents, 16, 4)
    two = texts.dataset(0, 2)
    assert [row[0].tolist() for row in rows_of(two)] == first + second
    assert two.cardinality() == 2 * texts.steps


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=60))
def test_packing_loses_no_text_and_leaves_no_two_rows_that_fit_into_one(sizes):
    rows = best_fit_decreasing(sizes, 20)
    assert sorted(i for row in rows for i in row) == list(range(len(sizes)))
    assert all(sum(sizes[i] for i in row) <= 20 for row in rows)
    # No two rows would fit into one.
    left = sorted(sum(sizes[i] for i in row) for row in rows)
    assert len(left) < 2 or left[0] + left[1] > 20


def test_padding_that_is_a_tokens_target_is_refused():
    refuses("target_pad_id=3, which is a target in the texts", PackedTexts, [[11, 12]], 4, 1, pad_id=3)
    texts = PackedTexts([[11, 12]], 4, 1, pad_id=3, target_pad_id=-1)
    inputs, targets = texts.batch([0])
    assert inputs["token_ids"].tolist() == [[2, 11, 12, 3]]
    assert targets.tolist() == [[11, 12, 3, -1]]


def test_wrong_arguments_are_named():
    sizes = {"length": 4, "batch_size": 1}
    check_refused(
        PackedTexts, {"length": 0}, {"batch_size": 0}, {"too_long": "cut"}, documents=[[5]], **sizes
    )
    wrong = ([5, 7, 11, 3], 5, *(([5, 7], each) for each in ([1, 0], [True], [[True, True]])))
    check_refused(PackedRows, *({"texts": [each]} for each in wrong), texts=[([5, 7], [True, True])], **sizes)


def test_each_text_may_have_a_row_of_its_own():
    assert PackedTexts([[5], [7]], 6, 1, packed=False).rows == 2
    for documents, message in (([], "0 texts"), ([["a"]], "lists of ids"), ([[[1, 2]]], "lists of ids")):
        refuses(message, PackedTexts, documents, 4, 1)


@pytest.mark.slow
def test_the_loss_of_packed_texts_is_that_of_each_alone():
    documents = some_texts(12)
    keras.utils.set_random_seed(0)
    attention = layers.MultiHeadAttention(3, 4, positions=layers.RotaryPositions())
    layer = layers.DecoderLayer(attention=attention, d_ff=17)
    model = LanguageModel(layers.Embeddings(50, 12, dropout=0.0), layers.Decoder([layer]))
    loss, count = 0.0, 0
    for d in documents:
        inputs, targets = np.array([[BOS, *d]], "int32"), np.array([[*d, EOS]], "int32")
        loss += float(MaskedCrossentropy()(targets, model(inputs))) * len(targets[0])
        count += len(targets[0])
    model.compile(loss=MaskedCrossentropy(), metrics=[MaskedAccuracy()], jit_compile=False)
    texts = PackedTexts(documents, 16, PackedTexts(documents, 16, 2).rows)
    assert model.evaluate(texts.dataset(0, 1), verbose=0)[0] == pytest.approx(loss / count, rel=1e-4)
