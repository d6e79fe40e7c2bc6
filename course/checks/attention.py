"""Checks of the chapters about attention: 1 to 8."""

import keras
import numpy as np

import keras_transformer as kt
from checks.base import attention, close, task


@task("1")
def read_both_ways(answer):
    """Two recurrent networks, one from each end."""
    random = np.random.default_rng(1)
    x = random.normal(size=(7, 3))
    forward, backward = ((random.normal(size=(3, 5)), random.normal(size=(5, 5)) / 3) for _ in range(2))
    states = np.array(answer(x, forward, backward))
    yield "A row for each word, and twice the width: (7, 10).", states.shape == (7, 10)
    yield (
        "The first word, read from the left, is tanh(x W).",
        close(states[0, :5], np.tanh(x[0] @ forward[0])),
    )
    yield (
        "The last word, read from the right, is tanh(x W).",
        close(states[-1, 5:], np.tanh(x[-1] @ backward[0])),
    )
    other = x.copy()
    other[3] += 1
    changed = np.array(answer(other, forward, backward)) != states
    yield "A change of word 3 does not reach the words before it from the left.", not changed[:3, :5].any()
    yield "It reaches the words after it from the left.", changed[3:, :5].any(axis=1).all()
    yield "It does not reach the words after it from the right.", not changed[4:, 5:].any()
    layer = keras.layers.Bidirectional(keras.layers.SimpleRNN(5, use_bias=False, return_sequences=True))
    layer.build((1, 7, 3))
    layer.set_weights([*forward, *backward])
    yield "Keras computes the same states.", close(states, np.array(layer(x[None].astype("float32")))[0])


@task("2")
def local_attention(answer):
    """Luong's attention to a window around a place."""
    random = np.random.default_rng(2)
    s, h, places = random.normal(size=(4, 3)), random.normal(size=(9, 3)), np.array([0.0, 3.0, 4.5, 8.0])
    context, weights = (np.array(array) for array in answer(s, h, places, 2))
    distance = np.arange(9) - places[:, None]
    window = np.abs(distance) <= 2
    yield (
        "The shapes are (4, 3) for the contexts and (4, 9) for the weights.",
        (context.shape, weights.shape) == ((4, 3), (4, 9)),
    )
    yield "Outside the window all weights are 0.", not weights[~window].any()
    yield "The context is the weighted sum of the states.", close(context, weights @ h)
    even = np.array(answer(np.zeros((4, 3)), h, places, 2)[1])
    yield (
        "With equal scores, the weight falls from the place as a Gaussian with a deviation of 1.",
        close(even, window * np.exp(-(distance**2) / 2) / window.sum(axis=1, keepdims=True)),
    )
    sharp = np.array(answer(100 * h[[3]], h, places[[1]], 2)[1])
    yield "Scores of some hundreds do not overflow.", np.isfinite(sharp).all()
    wide = np.array(answer(s, h, places, 1e6)[1])
    _, plain = attention(s * 3**0.5, h, h)
    yield "A window without an end gives the weights of chapter 2.", close(wide, plain, 1e-4)


@task("3")
def find_query(answer):
    """Gradient descent on a query."""
    random = np.random.default_rng(3)
    for number in range(1, 6):
        keys, values = random.normal(size=(5, 4)), random.normal(size=(5, 2))
        wanted = random.dirichlet(np.full(5, 3.0)) @ values
        query = np.array(answer(keys, values, wanted))
        powers = np.exp(keys @ query)
        found = powers @ values / powers.sum()
        yield (
            f"Table {number}: the look-up answers {wanted.round(2)} to within 0.01.",
            close(found, wanted, 0.01),
        )


@task("4")
def kernels(answer):
    """Matrices that make each token look where it should."""
    random = np.random.default_rng(4)
    for places in ([2, 0, 1], [3, 2, 1, 0], [1, 1, 4, 4, 0]):
        x, given = random.normal(size=(len(places), 6)), random.normal(size=(len(places), 3))
        w_query, w_key, w_value = (np.array(kernel) for kernel in answer(x, places, given))
        yield (
            f"{places}: three matrices with six rows each.",
            {len(w_query), len(w_key), len(w_value)} == {6},
        )
        query, key, value = x @ w_query, x @ w_key, x @ w_value
        output, weights = attention(query * query.shape[-1] ** 0.5, key, value)
        shares = weights[np.arange(len(places)), places]
        yield f"{places}: each token gives more than 0.99 to its place.", (shares > 0.99).all()
        yield f"{places}: each token gets the row of its place.", close(output, given[places], 0.05)


@task("5")
def attention_in_parts(answer):
    """Attention that never holds all scores."""
    random = np.random.default_rng(5)

    def parts(keys, values, size):
        for begin in range(0, len(keys), size):
            part = keys[begin : begin + size].copy(), values[begin : begin + size].copy()
            yield part
            for array in part:
                array[:] = np.nan

    for size, factor in ((1, 1), (4, 1), (12, 1), (4, 400)):
        query = factor * random.normal(size=8)
        keys, values = random.normal(size=(12, 8)), random.normal(size=(12, 3))
        wanted, _ = attention(query[None], keys, values)
        found = np.array(answer(query, parts(keys, values, size)))
        largest = np.abs(keys @ query).max() / 8**0.5
        yield (
            f"Parts of {size}, scores up to {largest:.0f}: all at once is the same.",
            close(found, wanted[0]),
        )


@task("6")
def multi_head_attention(answer):
    """Several heads, for self-attention and for cross-attention."""
    random = np.random.default_rng(6)
    x, memory = random.normal(size=(5, 12)), random.normal(size=(7, 12))
    weights = [random.normal(size=(12, 12)) / 3 for _ in range(4)]
    outputs = []
    for heads in (1, 3, 4):
        layer = kt.MultiHeadAttention(heads, 12 // heads, use_bias=False)
        layer.build((1, 5, 12), (1, 7, 12))
        layer.set_weights([w.reshape(own.shape) for w, own in zip(weights, layer.weights, strict=True)])
        wanted = np.array(layer(x[None].astype("float32"), memory[None].astype("float32")))[0]
        outputs.append(np.array(answer(x, memory, *weights, heads)))
        yield f"{heads} heads: the library computes the same.", close(outputs[-1], wanted)
    yield "The number of heads matters.", not close(outputs[0], outputs[1], 1e-3)
    moved = np.array(answer(x[::-1], memory, *weights, 3))
    yield "The queries may come in any order: the output has the same order.", close(moved, outputs[1][::-1])


@task("7")
def packed_mask(answer):
    """The mask of several dialogues in a row."""
    numbers = np.array([[1, 1, 1, 2, 2, 2, 2, 0], [5, 5, 5, 5, 5, 5, 0, 0]])
    prompts = np.array([[1, 1, 0, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0, 0]], bool)
    mask = np.array(answer(numbers, prompts))
    yield "A table for each row, of bool: (2, 8, 8).", mask.shape == (2, 8, 8) and mask.dtype == bool
    yield "Nobody sees another text.", not mask[0, :3, 3:].any() and not mask[0, 3:, :3].any()
    yield "Padding sees nothing, and nothing sees it.", not mask[0, 7].any() and not mask[1, :, 6:].any()
    yield (
        "Each token sees itself.",
        mask.diagonal(0, 1, 2)[numbers != 0].all(),
    )
    yield "Without a prompt nobody looks ahead.", np.array_equal(mask[1, :6, :6], np.tri(6, dtype=bool))
    yield "The tokens of a prompt see each other in both directions.", mask[0, 0, 1] and mask[0, :2, :2].all()
    yield "The answer does not look ahead.", not mask[0, 4, 5:].any() and not mask[0, 3, 4:].any()
    random = np.random.default_rng(7)
    x = random.normal(size=(8, 4))
    together, _ = attention(x, x, x, mask[0])
    alone, _ = attention(*[x[:3]] * 3, np.array(answer(numbers[:1, :3], prompts[:1, :3]))[0])
    yield "A text gives the same outputs alone and in the row.", close(together[:3], alone)


@task("8")
def rotate(answer):
    """Positions as a rotation of queries and keys."""
    random = np.random.default_rng(8)
    x = random.normal(size=(6, 8))
    turned = np.array(answer(x, np.arange(6)))
    yield "The shape stays.", turned.shape == x.shape
    yield "Place 0 turns nothing.", close(turned[0], x[0])
    yield "The lengths stay.", close(np.linalg.norm(turned, axis=1), np.linalg.norm(x, axis=1))
    hands = np.array(answer(np.tile([1.0, 0.0], (1, 4)), np.array([3])))[0].reshape(4, 2)
    angles = 3 / 10_000 ** (np.arange(4) / 4)
    yield (
        "Pair i at place p turns by p / 10,000^(2i/d).",
        close(hands, np.stack([np.cos(angles), np.sin(angles)], 1)),
    )
    q, k = x[:1], x[1:2]
    products = [
        (np.array(answer(q, np.array([a]))) @ np.array(answer(k, np.array([b]))).T).item()
        for a, b in ((7, 4), (107, 104), (3, 0), (4, 7))
    ]
    yield "A product of query and key depends on the distance alone.", close(products[:2], [products[2]] * 2)
    yield (
        "The direction counts: three places back is not three places ahead.",
        not close(products[0], products[3]),
    )
