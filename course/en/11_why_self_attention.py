# %% [markdown]
# # 11. Why self-attention: cost, steps and paths
#
# After this chapter you can read table 1 of the paper: what a layer costs, how much of it must run one step after
# another, and how far a signal travels between two tokens. You count all three yourself, and then you measure the time
# of real layers.
#
# **Before:** chapters 4 and 5 (self-attention by hand, scaled dot-product).

# %% [markdown]
# ## Four layers for one job
#
# A layer reads $n$ vectors of width $d$ and writes $n$ vectors of width $d$. The vector at each place should know
# something about the other places. Four kinds of layers can do this:
#
# | layer | how place $i$ learns about place $j$ |
# | --- | --- |
# | self-attention | it compares itself with every place and mixes all of them |
# | recurrent | the state passes through all places from $j$ to $i$, one after another |
# | convolutional | a filter sees $k$ neighbours; more layers see farther |
# | restricted self-attention | attention to $r$ neighbours only |
#
# The paper compares them by three numbers (table 1). $k$ is the width of the filter, $r$ the number of
# neighbours:
#
# | layer | cost of a layer | sequential operations | longest path |
# | --- | --- | --- | --- |
# | self-attention | $n^2 d$ | $1$ | $1$ |
# | recurrent | $n d^2$ | $n$ | $n$ |
# | convolutional | $k n d^2$ | $1$ | $\log_k n$ |
# | restricted self-attention | $r n d$ | $1$ | $n / r$ |
#
# Each number is an order: constant factors are left out. Let us find the constants, too.

# %%
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import time

import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.fonts import font_families

keras.utils.set_random_seed(11)
random = np.random.default_rng(11)

# %% [markdown]
# ## Count the multiplications
#
# We write each layer in NumPy, and let every matrix product go through a counter. The counter also keeps the
# number of *rounds*: a product that needs the result of another product has to wait for the next round. Products
# in the same round could run at the same time.


# %%
class Counter:
    """Multiplies matrices, and counts scalar multiplications and rounds."""

    def __init__(self):
        self.multiplications = 0
        self.rounds = 0

    def product(self, a, b):
        """Returns a @ b."""
        self.multiplications += a.shape[0] * a.shape[1] * b.shape[1]
        return a @ b

    def next_round(self):
        """What follows needs the results so far."""
        self.rounds += 1


def softmax(scores):
    """Softmax over the last axis."""
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def self_attention(x, count):
    """Attention in which x is query, key and value."""
    scores = count.product(x, x.T) / np.sqrt(x.shape[1])
    count.next_round()
    mixed = count.product(softmax(scores), x)
    count.next_round()
    return mixed


def restricted_attention(x, reach, count):
    """The same, but each place sees only `reach` places on either side, and itself."""
    rows = []
    for i in range(len(x)):  # no row waits for another row
        near = x[max(i - reach, 0) : i + reach + 1]
        scores = count.product(x[i : i + 1], near.T) / np.sqrt(x.shape[1])
        rows.append(count.product(softmax(scores), near))
    count.next_round()
    count.next_round()
    return np.concatenate(rows)


def recurrent(x, kernel, state_kernel, count):
    """h_i = tanh(x_i W + h_(i-1) U)."""
    inputs = count.product(x, kernel)
    count.next_round()
    state, states = np.zeros_like(inputs[:1]), []
    for row in inputs:
        state = np.tanh(row + count.product(state, state_kernel))
        count.next_round()  # the next place needs this state
        states.append(state)
    return np.concatenate(states)


def convolution(x, kernels, count):
    """y_i is the sum of x_(i-j) K_j over k places; the past only."""
    k = len(kernels)
    padded = np.concatenate([np.zeros((k - 1, x.shape[1])), x])
    terms = [count.product(padded[j : j + len(x)], kernels[j]) for j in range(k)]
    count.next_round()
    return sum(terms)


# %% [markdown]
# Now we count for $n = 40$ tokens of width $d = 16$, a filter of $k = 3$ and $r = 5$ neighbours (two on either
# side, and the token itself).

# %%
n, d, k, reach = 40, 16, 3, 2
r = 2 * reach + 1
x = random.normal(size=(n, d))
kernel, state_kernel = random.normal(size=(2, d, d)) / np.sqrt(2 * d)
kernels = random.normal(size=(k, d, d)) / np.sqrt(k * d)

counts = {name: Counter() for name in ("self-attention", "recurrent", "convolutional", "restricted")}
by_hand = {
    "self-attention": self_attention(x, counts["self-attention"]),
    "recurrent": recurrent(x, kernel, state_kernel, counts["recurrent"]),
    "convolutional": convolution(x, kernels, counts["convolutional"]),
    "restricted": restricted_attention(x, reach, counts["restricted"]),
}
for name, count in counts.items():
    print(f"{name:16}{count.multiplications:8,} multiplications in {count.rounds:3} rounds")

# %% [markdown]
# The orders of the table are right, and the constant factors that it leaves out are small: attention multiplies twice
# (scores and mixture), and so does the recurrent layer (input and state). At both ends of the sentence the restricted
# layer has fewer neighbours, so it needs a little less than $2 r n d$.
#
# In this example attention needs 51,200 multiplications, more than the 20,480 of the recurrent layer. The two counts
# are $2 n^2 d$ and $2 n d^2$, so their ratio is $n / d = 40 / 16 = 2.5$. Attention costs more where $n > d$, and less
# where $n < d$. We took a small $d$ to make counting easy; in models that translate sentences $n < d$ is usual (see
# below).
#
# Now look at the rounds. Attention needs two, whatever the length. The recurrent layer needs one for each token, and
# no machine with more cores can change that.

# %%
assert counts["self-attention"].multiplications == 2 * n**2 * d
assert counts["recurrent"].multiplications == 2 * n * d**2
assert counts["convolutional"].multiplications == k * n * d**2
missing = reach * (reach + 1)  # neighbours that the two ends lack
assert counts["restricted"].multiplications == 2 * (r * n - missing) * d
assert {name: count.rounds for name, count in counts.items()} == {
    "self-attention": 2,
    "recurrent": n + 1,
    "convolutional": 1,
    "restricted": 2,
}

# %% [markdown]
# Are these really the layers that a model uses? We give the same numbers to the library's attention and to
# Keras's layers. All four agree.
#
# `kt.layers.dot_product_attention` takes `(batch, num_heads, length, key_dim)`. `window=3` means: less than three
# places away, so two on either side.

# %%
batch = x[None].astype("float32")
heads = batch[None]

whole, _ = kt.layers.dot_product_attention(heads, heads, heads)
near, _ = kt.layers.dot_product_attention(heads, heads, heads, window=reach + 1)
rnn = keras.layers.SimpleRNN(d, return_sequences=True, use_bias=False)
rnn.build(batch.shape)
rnn.set_weights([kernel, state_kernel])
convolved = keras.layers.Conv1D(d, k, padding="causal", use_bias=False)
convolved.build(batch.shape)
convolved.set_weights([kernels])

np.testing.assert_allclose(whole[0, 0], by_hand["self-attention"], atol=1e-5)
np.testing.assert_allclose(near[0, 0], by_hand["restricted"], atol=1e-5)
np.testing.assert_allclose(rnn(batch)[0], by_hand["recurrent"], atol=1e-4)
np.testing.assert_allclose(convolved(batch)[0], by_hand["convolutional"], atol=1e-4)

# %% [markdown]
# ## Which one is cheaper?
#
# Divide the two costs: $\frac{n^2 d}{n d^2} = \frac{n}{d}$. Self-attention is cheaper than a recurrent layer while
# the sentence is shorter than the vectors are wide. The paper's base model has $d = 512$, and a sentence has some 30
# tokens: then attention needs a seventeenth of the multiplications. A book of 100,000 tokens turns this around. That
# is why there are *windows*: attention to the near places only, which is restricted self-attention.
#
# This counts the scores and the mixture only. A whole attention layer also has four projections (query, key, value,
# output), which cost $4 n d^2$. Below $n = 2d$ they are the larger part. The paper's table leaves them out. With them
# an attention layer needs $2 n^2 d + 4 n d^2$ multiplications. This is $n/d + 2$ times as many as the simple
# recurrent layer above needs, a little more than twice as many for $n = 30$ and $d = 512$. An LSTM has four times as
# many matrices, because it also computes what to keep and what to erase. It needs $8 n d^2$, which is more. So for
# short sentences attention is fast less for its number of multiplications than for its number of rounds.

# %%
for length in (30, 512, 100_000):
    print(f"n = {length:7,}: attention / recurrent = {length**2 * 512 / (length * 512**2):8.3f}")
assert round(512 / 30) == 17

scores_and_mixture, projections = 2 * 1024**2 * 512, 4 * 1024 * 512**2
assert scores_and_mixture == projections  # n = 2d

# %% [markdown]
# ## Measure the path
#
# How many layers lie between the first token and the last one? A layer has a path from input $0$ to output $n-1$
# if the gradient of this output with respect to this input is not zero. So we stack layers until the gradient
# arrives, and count them. We take $n = 27 = 3^3$.
#
# The paper's $\log_k n$ holds for *dilated* convolutions: the second layer takes every third place, the third
# layer every ninth. Without dilation a stack needs about $n / k$ layers (here each of our causal layers reaches
# $k - 1 = 2$ places back).


# %%
def gradient_by_place(layers, length, width=8):
    """Returns how strongly the last output depends on each input, `(length,)`."""
    x = tf.constant(np.random.default_rng(0).normal(size=(1, length, width)), "float32")
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = x
        for layer in layers:
            y = layer(y)
        last = tf.reduce_sum(y[0, -1] * tf.range(1.0, width + 1))
    return np.linalg.norm(tape.gradient(last, x)[0], axis=-1)


def layers_needed(make_layer, length):
    """Stacks layers until the last output depends on the first input."""
    layers = [make_layer(0)]
    while gradient_by_place(layers, length)[0] == 0:
        layers.append(make_layer(len(layers)))
    return len(layers)


class SelfAttention(kt.layers.MultiHeadAttention):
    """Attention of a sequence to itself."""

    def call(self, x):
        return super().call(x, x)

    def build(self, shape):
        super().build(shape, shape)


long = 27
depths = {
    "self-attention": layers_needed(lambda i: SelfAttention(2, 4), long),
    "convolutional, dilated": layers_needed(
        lambda i: keras.layers.Conv1D(8, 3, padding="causal", dilation_rate=3**i), long
    ),
    "convolutional": layers_needed(lambda i: keras.layers.Conv1D(8, 3, padding="causal"), long),
    "restricted, r = 5": layers_needed(lambda i: SelfAttention(2, 4, sliding_window=3), long),
}
print(depths)
assert depths == {
    "self-attention": 1,
    "convolutional, dilated": 3,  # log_3 27
    "convolutional": 13,  # 26 / 2
    "restricted, r = 5": 13,  # two places a layer
}

# %% [markdown]
# Restricted attention needs 13 layers, more than the $n / r = 27 / 5$ of the table. That is because $r$ counts the
# neighbours on both sides and the token itself. With $r = 5$, one layer reaches only $(r - 1) / 2 = 2$ places to one
# side. From the first token to the last the signal goes in one direction, so it needs $26 / 2 = 13$ layers. The table
# gives an order; the constant that it leaves out is $13 / 5.4 \approx 2.4$ here.
#
# A recurrent layer is missing from this list: one layer is enough. But inside this layer the signal passes through $n$
# cells, and at each cell it can get weaker. So we measure what is left of it: the gradient of the last output with
# respect to each input, for an untrained LSTM and for untrained attention.

# %%
distance = np.arange(64)[::-1]
gradients = {
    "self-attention": gradient_by_place([SelfAttention(2, 4)], 64),
    "LSTM": gradient_by_place([keras.layers.LSTM(8, return_sequences=True)], 64),
}
for name, gradient in gradients.items():
    print(f"{name:16}60 places away: {gradient[3]:.1e}, 2 places away: {gradient[61]:.1e}")
assert gradients["LSTM"][3] < 1e-3 * gradients["LSTM"][61]
assert gradients["self-attention"][3] > 1e-2 * gradients["self-attention"][61]

# %% [markdown]
# ## Measure the time
#
# A count is not a time. So we run each layer on sequences of growing length, and take the median of five runs.
# The figures depend on your machine. Compare the slopes, not the milliseconds.


# %%
def milliseconds(layer, length, width=64):
    """Returns the median time of a forward pass, in milliseconds."""
    x = tf.random.normal((1, length, width))
    run = tf.function(layer)
    run(x)  # traces the function; not timed
    times = []
    for _ in range(5):
        began = time.perf_counter()
        run(x).numpy()
        times.append(time.perf_counter() - began)
    return 1000 * np.median(times)


lengths = [64, 128, 256, 512, 1024, 2048]
timed = {
    "self-attention": SelfAttention(1, 64),
    "restricted": SelfAttention(1, 64, sliding_window=32),
    "recurrent": keras.layers.LSTM(64, return_sequences=True, use_cudnn=False),
    "convolutional": keras.layers.Conv1D(64, 3, padding="causal"),
}
times = {name: [milliseconds(layer, length) for length in lengths] for name, layer in timed.items()}

# %%
colours = {
    "self-attention": "#3a6ea5",
    "restricted": "#2a9d8f",
    "recurrent": "#d1603d",
    "convolutional": "#8a6fb0",
}
labels = {
    "self-attention": "self-attention",
    "restricted": "restricted attention",
    "recurrent": "recurrent (LSTM)",
    "convolutional": "convolution",
}

# %% tags=["hide-input"]
plt.rcParams["font.family"] = font_families(*labels.values())
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
for name, values in times.items():
    left.loglog(lengths, values, "o-", color=colours[name], label=labels[name])
left.set(
    xlabel="length n, tokens",
    ylabel="milliseconds",
    title="Time of one layer, d = 64",
)
left.set_xticks(lengths, map(str, lengths))
left.minorticks_off()
left.legend()
right.semilogy(
    distance, gradients["self-attention"], color=colours["self-attention"], label=labels["self-attention"]
)
right.semilogy(distance, gradients["LSTM"], color=colours["recurrent"], label=labels["recurrent"])
right.set(
    xlabel="distance from the last token, places",
    ylabel="size of the gradient",
    title="How much the last output depends on each input",
)
right.legend()
plt.show()

# %% [markdown]
# **What to look at.** On the left, the recurrent line is high and straight: twice the length takes twice the time,
# because each step waits for the step before. Self-attention usually starts below it, and becomes the steepest line at
# the end: that is $n^2$. For short sequences nearly all of its time is the fixed cost of starting the operations. On
# the right, the LSTM's gradient falls by many powers of ten within 60 places. The gradient of attention does not fall
# with distance: every token is one step away.

# %% [markdown]
# ## Exercise
#
# ### Five minutes
#
# The last row of table 1 has a price: a window makes paths longer. A stack of attention layers sees $w - 1$
# places to either side in each layer (`sliding_window=w`).
#
# 1. How many layers with `sliding_window=9` does a sequence of 65 tokens need, so that the last token can know
#    the first one?
# 2. Does it take fewer layers if one layer *without* a window stands on top of a single windowed layer? Count layers.
#
# Answer on paper first. Then let `layers_needed` check it.

# %% tags=["hide-cell"]
# 1. The first token is 64 places away, and a layer sees 8 places, so it takes 8 layers.
windowed = layers_needed(lambda i: SelfAttention(2, 4, sliding_window=9), 65)
mixed = layers_needed(lambda i: SelfAttention(2, 4, sliding_window=None if i == 1 else 9), 65)
assert windowed == 64 // 8 == 8
assert mixed == 2  # 2. Two layers are enough: the layer without a window joins all places at once
print(windowed, mixed)

# %% [markdown]
# ### An hour
#
# Write `window_attention(query, key, value, window)` for matrices of `length` rows. It gives the same output as a
# full table with a mask: query $i$ sees the keys less than `window` places away, on both sides. But its memory must
# grow with $n \cdot w$, not with $n^2$: 20,000 rows fit into 100 MB.
#
# Write it in a file `answer.py`, with NumPy alone. `python course/check.py 11 answer.py` says which of its properties
# hold. No solution is published.
#
# ### A project
#
# Measure table 1 on your own computer. Take an attention layer, an LSTM and a convolution of the same width, for
# lengths from 16 to 4,096, forward and with the gradient. Draw time and memory on logarithmic axes. Where do the
# curves cross, and why not where the table says?

# %% [markdown]
# ## What to read next
#
# - Vaswani et al., 2017, ["Attention Is All You Need"](https://arxiv.org/abs/1706.03762), section 4 and table 1
# - Beltagy et al., 2020, ["Longformer"](https://arxiv.org/abs/2004.05150): windows together with a few global tokens,
#   an idea close to the exercise
# - Documents of this library: *Building blocks*, section "Long sequences"; *Benchmarks*, "What the paper's table
#   1 claims", which measures larger layers and whole training steps
# - Next chapter: **12a. Training: warm-up and label smoothing**
