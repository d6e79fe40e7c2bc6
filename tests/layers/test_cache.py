import keras
import numpy as np
import pytest
import tensorflow as tf
from contracts import as_numpy, compilations, normal, refuses
from keras import ops

from keras_transformer.execution import native
from keras_transformer.layers import Decoder, DecoderLayer, KVCache, TreeCache, empty_cache

BATCH, HEADS, SLOTS, KEY_DIM, VALUE_DIM = 2, 3, 7, 5, 4


def filled():
    return KVCache(normal(BATCH, HEADS, SLOTS, KEY_DIM), normal(BATCH, HEADS, SLOTS, VALUE_DIM))


def new(length):
    return KVCache(
        normal(BATCH, HEADS, length, KEY_DIM, seed=1), normal(BATCH, HEADS, length, VALUE_DIM, seed=1)
    )


def test_empty_cache_is_zeros():
    cache = empty_cache(BATCH, HEADS, SLOTS, KEY_DIM, VALUE_DIM, "bfloat16")
    np.testing.assert_array_equal(as_numpy(cache.key), np.zeros((BATCH, HEADS, SLOTS, KEY_DIM)))
    np.testing.assert_array_equal(as_numpy(cache.value), np.zeros((BATCH, HEADS, SLOTS, VALUE_DIM)))
    assert keras.backend.standardize_dtype(cache.key.dtype) == "bfloat16"
    assert cache.length == SLOTS


@pytest.mark.parametrize(("length", "index"), [(1, 0), (2, 2), (3, 4), (SLOTS, 0)])
def test_write_changes_its_slots_and_no_other(length, index):
    cache = filled()
    written = as_numpy(cache.write(new(length), index))
    np.testing.assert_array_equal(cache.key, filled().key)  # the old cache stays as it is
    for found, old, fresh in zip(written, filled(), new(length), strict=True):
        expected = old.astype("float64")
        expected[:, :, index : index + length] = fresh
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("length", "index"), [(1, SLOTS), (3, SLOTS - 2), (2, -1), (SLOTS + 1, 0)])
def test_write_past_the_end_is_refused(length, index):
    with pytest.raises(ValueError) as error:
        filled().write(new(length), index)
    assert f"room for {length} new tokens" in str(error.value)
    assert str(error.value).endswith(f"index={index}, slots={SLOTS}.")


@pytest.mark.parametrize("index", [np.int64(2), np.array(2), "int32", "int64"])
def test_write_takes_an_index_of_any_integer_dtype_in_and_outside_a_graph(index):
    expected = as_numpy(filled().write(new(3), 2).value)
    given = ops.convert_to_tensor(2, index) if isinstance(index, str) else index
    np.testing.assert_array_equal(as_numpy(filled().write(new(3), given).value), expected)
    for jit_compile in compilations() if index == "int32" else ():
        write = native.compiled(lambda i: filled().write(new(3), i), keras.layers.Layer(), jit_compile)
        np.testing.assert_array_equal(as_numpy(write(given).value), expected)


def test_write_keeps_the_dtype_of_the_cache():
    cache = empty_cache(BATCH, HEADS, SLOTS, KEY_DIM, VALUE_DIM, "bfloat16").write(new(2), 1)
    assert keras.backend.standardize_dtype(cache.key.dtype) == "bfloat16"
    np.testing.assert_allclose(as_numpy(cache.key)[:, :, 1:3], new(2).key, rtol=2**-8)


@pytest.mark.slow
@pytest.mark.parametrize("index", [1.7, np.float32(2), "2", None, np.array([1, 2])])
def test_index_that_is_no_integer_is_refused(index):
    rule = r"`index` must be an int or an int scalar tensor. Received: index="
    refuses(rule, filled().write, new(1), index)
    layer, x = DecoderLayer(3, 5), normal(BATCH, 1, 6)
    layer(x)
    if index is not None:
        refuses(rule, layer, x, cache=layer.empty_cache(BATCH, SLOTS), index=index)


def test_a_cache_of_other_sizes_is_refused():
    rule = "`cache` must have the batch, the heads and the sizes of the new keys and values"
    for shape in ((BATCH + 1, HEADS), (BATCH, HEADS + 1)):
        refuses(rule, empty_cache(*shape, SLOTS, KEY_DIM, VALUE_DIM, "float32").write, new(1), 0)
    refuses(rule, empty_cache(BATCH, HEADS, SLOTS, KEY_DIM, VALUE_DIM + 1, "float32").write, new(1), 0)


@pytest.mark.slow
def test_decoder_needs_a_cache_of_each_layer():
    decoder, x = Decoder(2, 3, 5), normal(BATCH, 1, 6)
    decoder(x, x)
    cache, memory = decoder.empty_cache(BATCH, SLOTS), decoder.project_memory(x)
    for wrong in (cache[0], cache[:1], "none"):
        with pytest.raises(ValueError, match="`cache` must be a tuple with a `KVCache` for each layer"):
            decoder(x, memory, cache=wrong, index=0)
    for wrong in (memory[0], memory[:1]):
        with pytest.raises(ValueError, match="`memory` must be a tuple with a `KVCache` for each layer"):
            decoder(x, wrong, cache=cache, index=0)


def test_a_decoder_layer_takes_an_index_of_numpy():
    layer, x = DecoderLayer(3, 5), normal(BATCH, 4, 6)
    expected = layer(x)
    np.testing.assert_array_equal(as_numpy(layer(x, index=np.int64(0))), as_numpy(expected))
    cache = layer.empty_cache(BATCH, SLOTS)
    for i in range(4):
        y, cache = layer(x[:, i : i + 1], cache=cache, index=np.int64(i))
        np.testing.assert_allclose(as_numpy(y)[:, 0], as_numpy(expected)[:, i], atol=1e-5)


def tree(shape, steps):
    cache = KVCache(ops.zeros(shape), ops.ones(shape))
    return TreeCache((cache,), ops.zeros((shape[0], 1, 0), "int32")).grown(steps)


@pytest.mark.tensorflow
def test_two_growths_of_one_cache_share_no_memory():
    """TensorFlow takes equal operations for one, unless they have a side effect."""

    def written(steps, index):
        grown = tree((1, 2, 3, 4), 2)
        states = [grown.grown(steps).layers[0] for _ in range(2)]
        new = [ops.full((1, 2, 1, 4), value) for value in (7.0, 9.0)]
        keys = [state.write(KVCache(x, x), index).key for state, x in zip(states, new, strict=True)]
        with tf.control_dependencies(keys):
            return [tf.identity(key)[0, :, :, 0] for key in keys]

    one, other = tf.function(written)(tf.constant(6), tf.constant(1))
    assert one.numpy()[0].tolist() == [0, 7, *[0] * 7] and other.numpy()[0].tolist() == [0, 9, *[0] * 7]
    past, _ = tf.function(written)(tf.constant(6), tf.constant(99))
    assert past.numpy().tolist() == [[*[0] * 8, 7]] * 2, "it stays within its head"


@pytest.mark.tensorflow
def test_a_cache_of_another_graph_and_one_of_unknown_heads_are_written():
    @tf.function(input_signature=[tf.TensorSpec((None,) * 3 + (4,)), tf.TensorSpec((), "bool")])
    def written(x, first):
        cache = TreeCache((KVCache(x, x),), tf.zeros((tf.shape(x)[0], 1, 0), "int32"))

        def branch(index):
            state, place = cache.at(index, 1)
            new = x[:, :, :1] + 1
            return state.layers[0].write(KVCache(new, new), place.slot).key

        return tf.cond(first, lambda: branch(tf.constant(1)), lambda: branch(tf.constant(2)))

    for first, expected in ((True, [0, 1, 0]), (False, [0, 0, 1])):
        assert written(tf.zeros((1, 2, 3, 4)), first).numpy()[0, :, :, 0].tolist() == [expected] * 2
