import keras
import numpy as np
import pytest
from contracts import as_numpy, assert_close, mask_of, normal, randomized
from keras import ops

from keras_transformer.layers import TokenEmbedding

VOCAB, D_MODEL = 7, 5
IDS = np.array([[3, 6, 1], [4, 0, 0]], "int32")


def built(**arguments):
    layer = TokenEmbedding(VOCAB, D_MODEL, **arguments)
    layer.build()
    return randomized(layer)


def test_looks_up_and_scales_by_the_root_of_the_width():
    layer = built()
    table = as_numpy(layer.embeddings)
    assert_close(layer(IDS), table[IDS] * np.sqrt(D_MODEL))


def test_logits_are_products_with_each_embedding():
    layer, x = built(), normal(2, 3, D_MODEL)
    expected = x.astype("float64") @ as_numpy(layer.embeddings).T
    assert_close(layer(x, reverse=True), expected)
    assert_close(layer(x, reverse=True, output_kernel=layer.output_kernel()), expected)


def test_both_ends_share_one_matrix():
    layer, x = built(), normal(2, 3, D_MODEL)
    before = as_numpy(layer(x, reverse=True))
    layer.embeddings.assign(2.0 * layer.embeddings)
    assert_close(layer(x, reverse=True), 2 * before)
    assert len(layer.weights) == 1


def test_reversed_in_a_functional_model_it_stays_tied():
    layer = built(pad_id=0)
    ids = keras.Input((None,), dtype="int32")
    logits = layer(layer(ids), reverse=True)
    assert logits.shape == (None, None, VOCAB)
    model = keras.Model(ids, logits)
    before = as_numpy(model(IDS))
    assert_close(before, as_numpy(layer(layer(IDS), reverse=True)))
    np.testing.assert_array_equal(as_numpy(mask_of(model(IDS))), IDS != 0)
    layer.embeddings.assign(2.0 * layer.embeddings)
    assert_close(model(IDS), 4 * before)
    assert [weight.path for weight in model.trainable_weights] == [layer.embeddings.path]


def test_logits_are_float32_under_mixed_bfloat16():
    layer = built(dtype="mixed_bfloat16")
    logits = layer(ops.cast(normal(2, 3, D_MODEL), "bfloat16"), reverse=True)
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"
    expected = normal(2, 3, D_MODEL).astype("float64") @ as_numpy(layer.embeddings).T
    assert_close(logits, expected, 0.03)


def test_padding_is_marked_where_asked():
    np.testing.assert_array_equal(as_numpy(mask_of(built(pad_id=0)(IDS))), IDS != 0)
    np.testing.assert_array_equal(as_numpy(mask_of(built(pad_id=3)(IDS))), IDS != 3)
    assert mask_of(built()(IDS)) is None


def test_large_ids_keep_their_value_under_mixed_precision():
    """bfloat16 has no 257: ids that were cast on the way would name a neighbour."""
    layer = TokenEmbedding(521, 2, dtype="mixed_bfloat16")
    layer.build()
    layer.embeddings.assign(np.arange(1042).reshape(521, 2) % 256)
    ids = np.array([[257, 259, 513]], "int32")
    assert_close(layer(ids), (np.arange(1042).reshape(521, 2) % 256)[ids] * np.sqrt(2), 0.01)


def test_scaled_embeddings_start_with_unit_variance():
    layer = TokenEmbedding(1009, 101)
    layer.build()
    table = as_numpy(layer.embeddings) * 101**0.5
    np.testing.assert_allclose(table.std(), 1.0, rtol=0.05)


def test_another_initializer_makes_the_matrix():
    layer = TokenEmbedding(
        1009, 101, scale=1.0, embeddings_initializer=keras.initializers.RandomNormal(stddev=1.0)
    )
    layer.build()
    np.testing.assert_allclose(as_numpy(layer.embeddings).std(), 1.0, rtol=0.05)
    again = TokenEmbedding.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    assert again.embeddings_initializer.stddev == 1.0


@pytest.mark.parametrize(("name", "value"), [("vocab_size", 0), ("d_model", -1), ("vocab_size", None)])
def test_sizes_must_be_positive(name, value):
    with pytest.raises(ValueError, match=f"`{name}` must be a positive integer. Received: {name}={value}"):
        TokenEmbedding(**{"vocab_size": 7, "d_model": 5, name: value})
