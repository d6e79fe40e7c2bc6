# %% [markdown]
# # 6. Several heads
#
# After this chapter you know why a layer has several attentions side by side, how 512 numbers become 8 heads of 64, and
# what the matrix $W^O$ is for. You split and join the heads yourself, and the library's layer gives the same numbers.
#
# **Before:** chapters 4 and 5 (self-attention by hand, the scale $\sqrt{d_k}$).

# %% [markdown]
# ## One softmax makes one choice
#
# A softmax has shares that sum to 1. If a token gives 0.9 to one token, it has 0.1 left for all others. But a word
# often needs several others at once, each for another reason. Take "The animal did not cross the street because **it**
# was too tired". The word "it" needs "animal", to know what it stands for, and "tired", to know how it is.
#
# Could one attention give 0.5 to each? Yes, but then it returns the *mean* of the two values. A mean no longer says
# which part came from which word. Two attentions with two outputs keep them apart. Each of them is a *head*.

# %%
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import matplotlib.pyplot as plt
import numpy as np

import keras_transformer as kt
from keras_transformer.fonts import font_families

keras.utils.set_random_seed(6)
random = np.random.default_rng(6)

# %%
words = ["animal", "street", "tired"]
values = np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]])  # what a word is, how it is
one_head = np.array([0.5, 0.0, 0.5]) @ values
two_heads = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]) @ values
swapped = np.array([0.5, 0.0, 0.5]) @ values[::-1]  # another sentence: the two words have changed places
print("one head:", one_head, "two heads:", two_heads.tolist())
np.testing.assert_array_equal(one_head, swapped)  # one head cannot tell the two sentences apart

# %% [markdown]
# ## 512 numbers, 8 heads of 64
#
# More heads should not cost more. So the paper does not give 512 numbers to each head: it shares them out. With
# $d_{model} = 512$ and $h = 8$ heads, each head has queries, keys and values of $d_k = 512 / 8 = 64$ numbers:
#
# $$\text{head}_i = \text{Attention}(Q W_i^Q,\ K W_i^K,\ V W_i^V) \qquad
# \text{MultiHead}(Q, K, V) = \text{Concat}(\text{head}_1, \ldots, \text{head}_h)\, W^O$$
#
# Here $Q$, $K$ and $V$ are the inputs, *before* any matrix. In chapter 5 they were the queries, keys and values
# themselves. In self-attention all three are the same $x$. Each $W_i^Q$ has 512 rows and 64 columns. The eight outputs
# of 64 numbers lie side by side: 512 numbers again. Then $W^O$, 512 by 512, mixes what the heads found. Without it the
# first 64 numbers would hold only what head 1 found.
#
# Nobody multiplies eight small matrices one by one. Side by side they are one matrix of 512 by 512. One product
# computes all heads, and a `reshape` cuts it into pieces.

# %%
d_model, num_heads, length = 512, 8, 5
d_k = d_model // num_heads
assert d_k == 64

x = random.normal(size=(length, d_model))
w_query, w_key, w_value, w_output = random.normal(size=(4, d_model, d_model)) / np.sqrt(d_model)


def softmax(scores):
    """Turns each row of scores into shares that sum to 1."""
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def split(vectors):
    """Cuts (length, 512) into (8, length, 64): a table for each head."""
    return vectors.reshape(length, num_heads, d_k).transpose(1, 0, 2)


queries, keys, values = split(x @ w_query), split(x @ w_key), split(x @ w_value)
weights = softmax(queries @ keys.transpose(0, 2, 1) / np.sqrt(d_k))
heads = weights @ values
joined = heads.transpose(1, 0, 2).reshape(length, d_model)
outputs = joined @ w_output

for name, table in {
    "queries": queries,
    "weights": weights,
    "heads": heads,
    "joined": joined,
    "outputs": outputs,
}.items():
    print(f"{name:8s} {table.shape}")
assert w_query[:, :d_k].shape == (512, 64)
assert joined.shape == (5, 512)

# %% [markdown]
# The second head alone, with its own small matrices, gives the same numbers as the second slice of the big product. So
# cutting after the product is the same as multiplying with cut matrices.

# %%
second = slice(d_k, 2 * d_k)
q, k, v = x @ w_query[:, second], x @ w_key[:, second], x @ w_value[:, second]
np.testing.assert_allclose(softmax(q @ k.T / np.sqrt(64)) @ v, heads[1], atol=1e-9)

# %% [markdown]
# ## The library's layer
#
# `kt.MultiHeadAttention(8, 64)` is Keras's layer of the same name, extended by what decoding needs (chapter 10). Keras
# calls the matrix of a layer its *kernel*. The kernels of this layer have an axis for the heads: that of the queries is
# `(512, 8, 64)`. We give it our matrices.

# %%
attention = kt.MultiHeadAttention(num_heads, d_k, use_bias=False)
attention.build((1, length, d_model), (1, length, d_model))
kernels = [w.reshape(d_model, num_heads, d_k) for w in (w_query, w_key, w_value)]
attention.set_weights([*kernels, w_output.reshape(num_heads, d_k, d_model)])
for weight in attention.weights:
    print(weight.path.split("/", 1)[1], tuple(weight.shape))

found, found_weights = attention(
    x[None].astype("float32"), x[None].astype("float32"), return_attention_scores=True
)
np.testing.assert_allclose(found[0], outputs, atol=1e-4)
np.testing.assert_allclose(found_weights[0], weights, atol=1e-5)

# %% [markdown]
# How many weights is that? Four matrices of 512 by 512, with 1 head, with 8 or with 64. More heads need no more
# weights: they only share out what is there.

# %%
for count in (1, 8, 64):
    layer = kt.MultiHeadAttention(count, d_model // count, use_bias=False)
    layer.build((1, length, d_model), (1, length, d_model))
    print(f"{count:2d} heads: {layer.count_params():,}")
    assert layer.count_params() == 4 * 512 * 512

# %% [markdown]
# ## A task that needs two heads
#
# Do heads really learn to look at different places? Here is a task that needs two of them. A sequence holds eight
# random numbers. The answer for each position is the *first* number of the sequence minus the number *just before* the
# position. The first position has no number before it, so the answers begin with the second. One head makes all values
# with the same matrix and adds them with positive weights, so it can hardly subtract one number from another. Attention
# does not know the order (the exercise of chapter 4), so the input also holds the position, as a one-hot vector. We
# train two layers of the same size: one with a single head, one with two.

# %%
steps, size = 8, 32


def batch(number):
    """Draws sequences of random numbers, with their positions, and the answers."""
    numbers = random.normal(size=(number, steps))
    places = np.broadcast_to(np.eye(steps), (number, steps, steps))
    before = np.roll(numbers, 1, axis=1)
    return np.concatenate([numbers[..., None], places], axis=-1), (numbers[:, :1] - before)[:, 1:]


def train(count):
    """Trains a layer with so many heads; returns its maps and its error on new sequences."""
    keras.utils.set_random_seed(6)
    inputs = keras.Input((steps, 1 + steps))
    widen = keras.layers.Dense(size)
    wide = widen(inputs)
    layer = kt.MultiHeadAttention(count, size // count)
    answers = keras.layers.Dense(1)(layer(wide, wide))
    model = keras.Model(inputs, answers[:, 1:, 0])
    model.compile(keras.optimizers.Adam(5e-3), "mse")
    model.fit(*batch(24_000), batch_size=64, verbose=0)
    sequences = widen(batch(200)[0])
    _, maps = layer(sequences, sequences, return_attention_scores=True)
    return maps.numpy().mean(axis=0), model.evaluate(*batch(2000), verbose=0)


maps_one, error_one = train(1)
maps_two, error_two = train(2)
print(f"mean squared error: one head {error_one:.3f}, two heads {error_two:.3f}")
assert error_two < 0.5 * error_one

# %% [markdown]
# Look at the maps. Each row is a position that asks, each column a position that is read. They are means over 200
# sequences. Skip the row of the second position: its answer is always 0. The single head reads the first number (the
# first column) and not the number just before. Two heads read both: the first column, and the cells just below the
# diagonal. They do not share the work as neatly as you might hope. A head reads the first number for some positions and
# the number just before for others, and for some it divides its attention between the two. Nothing in the training asks
# for tidy heads; keep that in mind when you read attention (chapter 13).

# %%
tables = [*maps_one, *maps_two]
titles = ["the only head", "two heads: head 1", "two heads: head 2"]
axis_names = "position that is read", "position that asks"

# %% tags=["hide-input"]
plt.rcParams["font.family"] = font_families(*titles, *axis_names)
figure, panels = plt.subplots(1, 3, figsize=(10, 3.5), layout="constrained", sharey=True)
for axes, table, title in zip(panels, tables, titles, strict=True):
    axes.imshow(table[1:], cmap="Blues", vmin=0, vmax=1, extent=(0.5, steps + 0.5, steps + 0.5, 1.5))
    axes.set_title(title)
    axes.set_xlabel(axis_names[0])
panels[0].set_ylabel(axis_names[1])
plt.show()

# %%
rows = range(2, steps)
before_one = np.mean([tables[0][i, i - 1] for i in rows])
before_two = np.mean([max(table[i, i - 1] for table in tables[1:]) for i in rows])
print(f"share of the number before: one head {before_one:.2f}, the better of two {before_two:.2f}")
assert before_two > 3 * before_one

# %% [markdown]
# ## Exercise
#
# ### Five minutes
#
# A model has $d_{model} = 512$ and 8 heads. You remove head 3: you set the 64 rows of $W^O$ that read it to 0.
#
# 1. Which rows are these?
# 2. Is the output then the same as if the values of head 3 were 0?
# 3. How many of the $4 \cdot 512 \cdot 512$ weights could you delete, if you deleted the head altogether?

# %% tags=["hide-cell"]
# 1. Of the 512 numbers of `joined`, the first 64 come from head 1, the next 64 from head 2, and the next 64
#    from head 3. So these are rows 129 to 192.
third = slice(2 * d_k, 3 * d_k)
# 2. Yes. A row of W^O is multiplied by one number of `joined` only. The product is 0 if the row is 0, and also
#    if the number is 0. If all values are 0, their weighted sum is 0 whatever the attention weights are, so all
#    numbers of head 3 are 0.
without_rows = w_output.copy()
without_rows[third] = 0
silent = heads.copy()
silent[2] = 0
np.testing.assert_allclose(
    joined @ without_rows, silent.transpose(1, 0, 2).reshape(length, d_model) @ w_output
)
# 3. You can delete 64 columns of each of W^Q, W^K and W^V, and 64 rows of W^O. Without its values the attention
#    weights of the head are not used either, so the columns that make its queries and keys are not needed. These are
#    131,072 weights, an eighth of all.
deleted = 3 * 512 * 64 + 64 * 512
assert deleted == 4 * 512 * 512 // 8
print("rows", third.start + 1, "-", third.stop, "weights:", f"{deleted:,}")

# %% [markdown]
# ### An hour
#
# Write `multi_head_attention(x, memory, w_query, w_key, w_value, w_output, num_heads)`. The queries come from `x`,
# keys and values from `memory`, and all matrices are $d_{model} \times d_{model}$. Head $i$ takes the $i$-th group of
# columns. It must work for a memory of another length, too.
#
# Write it in a file `answer.py`, with NumPy alone. `python course/check.py 6 answer.py` says which of its properties
# hold. No solution is published.
#
# ### A project
#
# Which heads can go? Train a small translator (chapter 16), remove each head in turn by setting its rows of $W^O$ to
# 0, and measure how many translations stay right. Then remove the heads in the order of their importance. How many
# are left when the quality falls?

# %% [markdown]
# ## What to read next
#
# - Vaswani et al., 2017, ["Attention Is All You Need"](https://arxiv.org/abs/1706.03762), section 3.2.2, and table 3,
#   rows (A): one head is 0.9 BLEU worse than eight, and too many heads are worse, too
# - Voita et al., 2019, ["Analyzing Multi-Head Self-Attention"](https://arxiv.org/abs/1905.09418): which heads can go
# - In this library: `num_key_value_heads` lets several heads share their keys and values
# - The next chapter: **7. Masks**
