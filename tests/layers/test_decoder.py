import keras
import numpy as np
import pytest
from contracts import (
    STEP_IN_XLA,
    as_numpy,
    assert_close,
    mask_of,
    normal,
    randomized,
    with_mask,
)
from keras import ops, tree
from reference import decoder, decoder_layer, weights_of

from keras_transformer.layers import Decoder, DecoderLayer, PositionalEncoding, TokenEmbedding

BATCH, TARGET_LEN, SOURCE_LEN, D_MODEL, FEATURES, HEADS, D_FF, LAYERS = 2, 5, 7, 6, 13, 3, 11, 2
X, MEMORY = normal(BATCH, TARGET_LEN, D_MODEL), normal(BATCH, SOURCE_LEN, FEATURES)
REAL = np.array([[True] * 5, [True] * 3 + [False] * 2])
MEMORY_REAL = np.array([[True] * 7, [True] * 4 + [False] * 3])
BOTH_NORMS = pytest.mark.parametrize("normalize_first", [False, True], ids=["post_norm", "pre_norm"])


def layer(**arguments):
    made = DecoderLayer(HEADS, D_FF, **{"dropout": 0.0, **arguments})
    made.build(X.shape, MEMORY.shape)
    return randomized(made)


def stack(**arguments):
    made = Decoder(LAYERS, HEADS, D_FF, **{"dropout": 0.0, **arguments})
    made.build(X.shape, MEMORY.shape)
    return randomized(made)


@BOTH_NORMS
@pytest.mark.parametrize("masked", [False, True], ids=["full", "padded"])
def test_layer_agrees_with_numpy(normalize_first, masked):
    made = layer(normalize_first=normalize_first)
    real, memory_real = (REAL, MEMORY_REAL) if masked else (None, None)
    expected = decoder_layer(weights_of(made), X, MEMORY, real, memory_real, normalize_first)
    assert_close(made(X, MEMORY, padding_mask=real, memory_padding_mask=memory_real), expected, 3e-5)


@BOTH_NORMS
def test_stack_agrees_with_numpy(normalize_first):
    made = stack(normalize_first=normalize_first)
    expected = decoder(weights_of(made), X, MEMORY, LAYERS, REAL, MEMORY_REAL, normalize_first)
    assert_close(made(X, MEMORY, padding_mask=REAL, memory_padding_mask=MEMORY_REAL), expected, 3e-5)


@BOTH_NORMS
@pytest.mark.parametrize("make", [layer, stack])
def test_later_tokens_changed_change_nothing_before(make, normalize_first):
    made = make(normalize_first=normalize_first)
    expected = as_numpy(made(X, MEMORY))
    for position in range(1, TARGET_LEN):
        changed = X.copy()
        changed[:, position:] = normal(BATCH, TARGET_LEN - position, D_MODEL, seed=position, scale=10.0)
        found = as_numpy(made(changed, MEMORY))
        assert_close(found[:, :position], expected[:, :position], 1e-6)
        assert np.all(np.abs(found - expected)[:, position:].max(axis=-1) > 1e-3)


@BOTH_NORMS
@pytest.mark.parametrize("make", [layer, stack])
def test_padding_of_the_memory_changes_nothing(make, normalize_first):
    made = make(normalize_first=normalize_first)
    expected = as_numpy(made(X[1:], MEMORY[1:, :4]))
    for more in (1, 3, 5):
        padded = np.concatenate([MEMORY[1:, :4], normal(1, more, FEATURES, seed=1, scale=100.0)], axis=1)
        assert_close(made(X[1:], padded, memory_padding_mask=np.arange(4 + more)[None] < 4), expected)


@pytest.mark.parametrize("make", [layer, stack])
def test_padding_before_the_target_changes_nothing(make):
    """Padding on the left is what the causal mask does not hide."""
    made = make()
    expected = as_numpy(made(X, MEMORY))
    padded = np.concatenate([normal(BATCH, 3, D_MODEL, seed=1, scale=100.0), X], axis=1)
    real = np.repeat([[False] * 3 + [True] * TARGET_LEN], BATCH, axis=0)
    assert_close(made(padded, MEMORY, padding_mask=real)[:, 3:], expected)


@pytest.mark.parametrize("make", [layer, stack])
def test_implicit_masks_are_the_explicit_ones(make):
    made = make()
    x = with_mask(ops.convert_to_tensor(X), REAL)
    memory = with_mask(ops.convert_to_tensor(MEMORY), MEMORY_REAL)
    output = made(x, memory)
    assert_close(output, made(X, MEMORY, padding_mask=REAL, memory_padding_mask=MEMORY_REAL), 0.0)
    np.testing.assert_array_equal(as_numpy(mask_of(output)), REAL)
    np.testing.assert_array_equal(as_numpy(mask_of(memory)), MEMORY_REAL)
    assert np.abs(as_numpy(output) - as_numpy(made(X, MEMORY))).max() > 1e-3


@pytest.mark.parametrize("make", [layer, stack])
def test_explicit_masks_win_over_the_implicit_ones(make):
    made = make()
    x = with_mask(ops.convert_to_tensor(X), REAL)
    memory = with_mask(ops.convert_to_tensor(MEMORY), MEMORY_REAL)
    masks = {
        "padding_mask": np.array([[False] + [True] * 4, [True, False] + [True] * 3]),
        "memory_padding_mask": np.array([[False] + [True] * 6, [True, False] + [True] * 5]),
    }
    assert_close(made(x, memory, **masks), made(X, MEMORY, **masks), 0.0)


@BOTH_NORMS
@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
@pytest.mark.parametrize("chunk", [1, 2, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, TARGET_LEN))])
@pytest.mark.parametrize("make", [layer, stack])
def test_chunk_by_chunk_is_all_at_once(make, chunk, padded, normalize_first):
    made, slots = make(normalize_first=normalize_first), 7
    real = np.array([[True] * slots, [False, True, False] + [True] * (slots - 3)]) if padded else None
    memory_real = MEMORY_REAL if padded else None
    at_once = as_numpy(
        made(
            X,
            MEMORY,
            padding_mask=real[:, :TARGET_LEN] if padded else None,
            memory_padding_mask=memory_real,
        )
    )
    cache = made.empty_cache(BATCH, slots)
    memory = made.project_memory(MEMORY)
    for start in range(0, TARGET_LEN, chunk):
        x = X[:, start : start + chunk]
        output, cache = made(
            x,
            memory,
            padding_mask=real,
            memory_padding_mask=memory_real,
            cache=cache,
            index=start,
        )
        # What padding becomes is nobody's: only without a cache does it attend to nothing.
        now = slice(start, start + x.shape[1])
        kept = np.ones((BATCH, x.shape[1]), bool) if real is None else real[:, now]
        assert_close(as_numpy(output)[kept], at_once[:, now][kept])


@pytest.mark.parametrize("make", [layer, stack])
def test_projected_memory_is_the_memory(make):
    made = make()
    expected = made(X, MEMORY, memory_padding_mask=MEMORY_REAL)
    found = made(X, made.project_memory(MEMORY), memory_padding_mask=MEMORY_REAL)
    assert_close(found, expected, 1e-6)


@pytest.mark.parametrize("make", [layer, stack])
def test_attention_scores_come_in_pairs_before_the_cache(make):
    made = make()
    cache = made.empty_cache(BATCH, 7)
    masks = {"memory_padding_mask": MEMORY_REAL}
    output, scores, new_cache = made(X, MEMORY, **masks, cache=cache, index=0, return_attention_scores=True)
    assert_close(output, made(X, MEMORY, **masks))
    tree.assert_same_structure(new_cache, cache)
    for of_self, of_memory in scores if make is stack else [scores]:
        assert of_self.shape == (BATCH, HEADS, TARGET_LEN, 7)
        assert of_memory.shape == (BATCH, HEADS, TARGET_LEN, SOURCE_LEN)
        later = np.arange(7) > np.arange(TARGET_LEN)[:, None]
        assert np.all(as_numpy(of_self)[:, :, later] == 0)
        assert np.all(as_numpy(of_memory)[1, :, :, 4:] == 0)
        for weights in (of_self, of_memory):
            np.testing.assert_allclose(
                as_numpy(weights).sum(axis=-1), np.ones((BATCH, HEADS, TARGET_LEN)), rtol=1e-5
            )


TARGETS = np.array([[2, 5, 3, 1, 4], [2, 6, 1, 0, 0]], "int32")
SOURCES = np.array([[5, 3, 2, 4, 1, 3, 2], [4, 2, 6, 1, 0, 0, 0]], "int32")


class Subclassed(keras.Model):
    def __init__(self, embed, decode):
        super().__init__()
        self.embed = embed
        self.decode = decode

    def call(self, inputs):
        target, source = inputs
        return self.decode(self.embed(target), memory=self.embed(source))


@pytest.mark.slow
def test_functional_and_subclassed_models_mask_alike():
    embed = keras.Sequential([TokenEmbedding(7, D_MODEL, pad_id=0), PositionalEncoding()])
    decode = Decoder(LAYERS, HEADS, D_FF, dropout=0.0)
    target, source = keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="int32")
    functional = keras.Model([target, source], decode(embed(target), memory=embed(source)))
    randomized(functional)
    expected = as_numpy(
        decode(
            ops.copy(embed(TARGETS)),
            memory=ops.copy(embed(SOURCES)),
            padding_mask=TARGETS != 0,
            memory_padding_mask=SOURCES != 0,
        )
    )
    for model in (functional, Subclassed(embed, decode)):
        assert_close(model([TARGETS, SOURCES]), expected)
        assert_close(model.predict([TARGETS, SOURCES], verbose=0), expected)


@keras.saving.register_keras_serializable("test_decoder")
class OverMemory(keras.layers.Layer):
    """A decoder over one memory for every row."""

    def __init__(self):
        super().__init__()
        self.decoder = Decoder(LAYERS, HEADS, D_FF, dropout=0.0)

    def build(self, x_shape):
        self.decoder.build(x_shape, MEMORY.shape)

    def call(self, x):
        return self.decoder(x, ops.broadcast_to(MEMORY[:1], (ops.shape(x)[0], *MEMORY.shape[1:])))


def test_decoder_works_in_a_sequential_model():
    model = keras.Sequential([keras.Input((None, D_MODEL)), OverMemory()])
    randomized(model)
    expected = model.layers[-1].decoder(X, np.repeat(MEMORY[:1], BATCH, axis=0))
    assert_close(model(X), expected)


def test_later_tokens_reach_nothing_through_the_gradient():
    """A step of training on the first two positions is the same whatever comes after them."""
    inputs = [keras.Input((None, D_MODEL)), keras.Input((None, FEATURES))]
    made = layer()
    model = keras.Model(inputs, made(*inputs)[:, :2])
    model.compile(keras.optimizers.SGD(0.01), "mse", jit_compile=STEP_IN_XLA)
    before, results = made.get_weights(), []
    for later in (X, np.concatenate([X[:, :2], 10 * X[:, 2:]], axis=1)):
        made.set_weights(before)
        model.fit([later, MEMORY], np.ones((BATCH, 2, D_MODEL)), verbose=0)
        results.append(made.get_weights())
    assert_close(results[0], results[1])
    assert np.abs(results[0][0] - before[0]).max() > 1e-5


def test_heads_must_divide_the_width():
    with pytest.raises(ValueError, match=r"Received: d_model=6, num_heads=5\."):
        DecoderLayer(5, D_FF).build((None, None, 6), (None, None, 13))


def test_masks_of_a_memory_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"`memory_padding_mask` must fit .* \(2, 7\).* shape=\(2, 5\)"):
        layer()(X, MEMORY, memory_padding_mask=REAL)
    with pytest.raises(ValueError, match="`memory_padding_mask` needs a `memory`"):
        DecoderLayer(HEADS, D_FF)(X, memory_padding_mask=MEMORY_REAL)
