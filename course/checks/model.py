"""Checks of the chapters about the model, its training and its use: 9 to 16."""

import itertools
import tracemalloc

import keras
import numpy as np

import keras_transformer as kt
from checks.base import attention, close, task


@task("9")
def encoder_layer(answer):
    """A whole encoder layer, post-norm."""
    random = np.random.default_rng(9)
    for heads, d_model, d_ff in ((1, 6, 5), (2, 8, 11)):
        x = random.normal(size=(5, d_model))
        layer = kt.EncoderLayer(heads, d_ff, dropout=0.0)
        layer.build((1, 5, d_model))
        layer.set_weights([random.normal(size=w.shape) / 2 for w in layer.weights])
        wanted = np.array(layer(x[None].astype("float32")))[0]
        found = np.array(answer(x, weights_of(layer), heads))
        yield f"{heads} heads, d_model {d_model}: the library computes the same.", close(found, wanted, 1e-4)


def weights_of(layer):
    """Returns the weights of a layer as matrices and vectors, by the names that the chapter lists."""
    weights = {}
    for weight in layer.weights:
        *_, part, name = weight.path.split("/")
        block = next(block for block in weight.path.split("/") if block.startswith(("self", "cross", "feed")))
        array = keras.ops.convert_to_numpy(weight)
        if part in ("query", "key", "value"):
            array = array.reshape(*array.shape[:-2], -1)
        elif part == "attention_output" and name == "kernel":
            array = array.reshape(-1, array.shape[-1])
        weights[f"{block.removesuffix('_residual')}/{part}/{name}"] = array
    return weights


@task("10")
def learn_merges(answer):
    """Byte-pair encoding."""
    words = {"low": 5, "lower": 2, "newest": 6, "widest": 3}
    wanted = [("e", "s"), ("es", "t"), ("l", "o"), ("lo", "w"), ("e", "w"), ("ew", "est"), ("n", "ewest")]
    for number in (1, 3, 7):
        found = [tuple(pair) for pair in answer(words, number)]
        yield f"The first {number} of low, lower, newest, widest: {found}.", found == wanted[:number]
    yield (
        "The counts decide, not the number of words.",
        list(answer({"ab": 5, "cd": 2, "cde": 2}, 1)) == [("a", "b")],
    )
    yield (
        "Three equal letters have one pair, not two.",
        list(answer({"aaa": 1, "bcbcb": 1}, 1)) == [("b", "c")],
    )
    yield "It ends when no pair is left.", list(answer({"ab": 1}, 9)) == [("a", "b")]
    yield "The argument stays as it was.", words == {"low": 5, "lower": 2, "newest": 6, "widest": 3}


@task("11")
def window_attention(answer):
    """Attention to a window, without a table of all pairs."""
    random = np.random.default_rng(11)
    for window in (1, 3, 40):
        query, key, value = random.normal(size=(3, 30, 8))
        wanted, _ = attention(query, key, value, np.array(kt.masks.local_mask(30, window))[0, 0])
        yield f"Window {window}: a mask gives the same.", close(answer(query, key, value, window), wanted)
    query, key, value = random.normal(size=(3, 20_000, 8))
    tracemalloc.start()
    output = np.array(answer(query, key, value, 4))
    megabytes = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    yield "20,000 tokens have an output each.", output.shape == (20_000, 8)
    yield f"They need less than 100 MB, not 3,200. Measured: {megabytes:.0f} MB.", megabytes < 100


@task("12a")
def adam(answer):
    """Adam with any schedule."""
    random = np.random.default_rng(12)
    matrix, start = random.normal(size=(6, 6)), random.normal(size=6)

    def gradient(weights):
        return matrix.T @ (matrix @ weights)

    kept = start.copy()
    one = np.array(answer(start, gradient, [0.01]))
    yield "The first step moves each weight by the rate.", close(start - one, 0.01 * np.sign(gradient(start)))
    yield "The start stays as it was.", np.array_equal(start, kept)
    schedule = kt.WarmupSchedule.from_peak(0.1, 4, 64)
    for name, rates in (("constant", [0.05] * 12), ("warm-up", [float(schedule(i)) for i in range(12)])):
        weights = keras.Variable(start)
        optimizer = keras.optimizers.Adam(0.0, beta_2=0.98, epsilon=1e-9)
        for rate in rates:
            optimizer.learning_rate = rate
            optimizer.apply([gradient(keras.ops.convert_to_numpy(weights)).astype("float32")], [weights])
        found = np.array(answer(start, gradient, rates))
        yield (
            f"Twelve steps, {name}: Keras goes to the same place.",
            close(found, keras.ops.convert_to_numpy(weights), 1e-3),
        )


@task("12b")
def beam_search(answer):
    """Beam search over any table of log probabilities."""
    after = {0: {2: 0.6, 3: 0.4}, 2: {4: 0.4, 5: 0.3, 6: 0.3}, 3: {4: 0.9, 5: 0.1}}
    rows = [[after.get(a, {1: 1.0}).get(b, 1e-9) for b in range(7)] for a in range(7)]
    table = np.log(rows)
    for width, wanted in ((1, [2, 4, 1]), (2, [3, 4, 1])):
        tokens, score = answer(lambda tokens: table[tokens[-1]], width, 0, 1, 5)
        yield f"The table of chapter 12b, width {width}: {list(tokens)}.", list(tokens) == wanted
        likelihood = sum(table[a, b] for a, b in itertools.pairwise([0, *wanted]))
        yield "The score is the log probability of the sentence.", close(score, likelihood)
    random = np.random.default_rng(12)
    for number in range(1, 4):
        calls, tables = [], {}

        def next_word(tokens, calls=calls, tables=tables):
            calls.append(tuple(tokens))
            if calls[-1] not in tables:
                tables[calls[-1]] = np.log(random.dirichlet(np.ones(4)))
            return tables[calls[-1]]

        _, narrow = answer(next_word, 1, 0, 1, 4)
        few = len(calls)
        _, wide = answer(next_word, 1000, 0, 1, 4)
        best = max(
            sum(tables[(0, *row[:i])][token] for i, token in enumerate(row)) for row in sentences(4, 1, 4)
        )
        yield f"Table {number}: a beam that keeps all finds the likeliest sentence.", close(wide, best)
        yield (
            f"Table {number}: no beam is better than that, and width 1 asks 4 times.",
            narrow <= best and few <= 4,
        )


def sentences(words, end, longest):
    """Yields each sentence of at most `longest` words: it ends with `end`, or it is as long as it may be."""
    for length in range(1, longest + 1):
        for row in itertools.product(range(words), repeat=length):
            if end not in row[:-1] and (row[-1] == end or length == longest):
                yield row


@task("13")
def rollout(answer):
    """Attention followed through all layers."""
    random = np.random.default_rng(13)
    weights = random.dirichlet(np.ones(5), size=(3, 2, 5))
    found = np.array(answer(weights))
    yield "A table for all layers: (5, 5).", found.shape == (5, 5)
    yield "The shares of each row add up to 1.", close(found.sum(axis=1), np.ones(5))
    one = np.array(answer(weights[:1]))
    yield "One layer: half is the token itself.", close(one, (weights[0].mean(axis=0) + np.eye(5)) / 2)
    yield (
        "Tokens that see themselves alone stay alone.",
        close(answer(np.tile(np.eye(5), (3, 2, 1, 1))), np.eye(5)),
    )
    below, above = np.eye(3), np.eye(3)
    below[1], above[2] = [1, 0, 0], [0, 1, 0]
    path = np.array(answer(np.stack([below, above])[:, None]))
    yield (
        "Token 2 reads 1 above, and 1 reads 0 below: a quarter of token 2 is token 0.",
        close(path[2], [0.25, 0.25, 0.5]),
    )


@task("14")
def nucleus(answer):
    """Temperature and top-p."""
    logits = np.log([[0.5, 0.3, 0.15, 0.05], [0.05, 0.15, 0.3, 0.5]])
    yield "With p = 1 it is the softmax.", close(answer(logits, 1.0, 1.0), np.exp(logits))
    yield (
        "p = 0.75 keeps 0.5 and 0.3.",
        close(answer(logits, 1.0, 0.75), [[5 / 8, 3 / 8, 0, 0], [0, 0, 3 / 8, 5 / 8]]),
    )
    yield "p = 0.81 keeps three words.", (np.array(answer(logits, 1.0, 0.81)) > 0).sum() == 6
    yield "A tiny p keeps the likeliest word.", close(answer(logits, 1.0, 1e-6), [[1, 0, 0, 0], [0, 0, 0, 1]])
    square = np.exp(2 * logits) / np.exp(2 * logits).sum(axis=1, keepdims=True)
    yield "A temperature of 0.5 squares the probabilities.", close(answer(logits, 0.5, 1.0), square)
    yield (
        "The temperature comes before p: 0.5 and 0.65 keep one word.",
        (np.array(answer(logits, 0.5, 0.65)) > 0).sum() == 2,
    )
    yield "Logits of some thousands do not overflow.", close(answer(logits + 5000, 1.0, 1.0), np.exp(logits))


@task("15")
def other_weights(answer):
    """Other attention weights with the same output."""
    random = np.random.default_rng(15)
    for length in (6, 9):
        values, weights = random.normal(size=(length, 3)), random.dirichlet(np.full(length, 4.0))
        found = np.array(answer(values, weights))
        yield (
            f"{length} words: positive shares that add up to 1.",
            found.min() >= -1e-9 and close(found.sum(), 1.0),
        )
        yield f"{length} words: the output is the same.", close(found @ values, weights @ values)
        yield f"{length} words: one word that counted does not count any more.", abs(found).min() < 1e-9


@task("16")
def transformer(answer):
    """The logits of a whole Transformer."""
    random = np.random.default_rng(16)
    for layers, heads in ((1, 1), (2, 2)):
        model = kt.Transformer(11, num_layers=layers, d_model=8, num_heads=heads, d_ff=5, dropout=0.0)
        source, target = np.array([[5, 3, 7, 4, 0, 0]]), np.array([[2, 9, 6]])
        model({"source": source, "target": target})
        model.set_weights([random.normal(size=w.shape) / 2 for w in model.weights])
        embedding = keras.ops.convert_to_numpy(model.weights[0])
        encoder, decoder = (
            [weights_of(layer) for layer in side.layers] for side in (model.encoder, model.decoder)
        )
        wanted = np.array(model({"source": source, "target": target}))[0]
        found = np.array(answer(embedding, encoder, decoder, source[0], target[0], heads))
        yield f"{layers} layers, {heads} heads: (3, 11) logits.", found.shape == (3, 11)
        yield f"{layers} layers, {heads} heads: the library computes the same.", close(found, wanted, 1e-3)
        short = np.array(answer(embedding, encoder, decoder, source[0, :4], target[0], heads))
        yield (
            f"{layers} layers, {heads} heads: the padding of the source changes nothing.",
            close(short, found),
        )
