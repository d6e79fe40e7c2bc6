# %% [markdown]
# # 5. Scaled dot-product attention
#
# After this chapter you can write the most quoted formula of the paper from memory, and say what shape each part of
# it has. You can explain the small $\sqrt{d_k}$ in it: what goes wrong without it, and why it is not $d_k$.
#
# **Before:** chapter 4 (self-attention by hand). You need to know what a standard deviation is.

# %% [markdown]
# ## The formula
#
# Chapter 4 ended with three lines of code. As one formula, with one division added, this is equation 1 of the paper:
#
# $$\mathrm{Attention}(Q, K, V) = \mathrm{softmax}\left(\frac{QK^\top}{\sqrt{d_k}}\right) V$$
#
# | part | shape | one row is |
# | --- | --- | --- |
# | $Q$ | (target_len, $d_k$) | the query of a token |
# | $K$ | (source_len, $d_k$) | the key of a token |
# | $V$ | (source_len, $d_v$) | the value of a token |
# | $QK^\top$ | (target_len, source_len) | the scores of one query for all keys |
# | the result | (target_len, $d_v$) | the mixture for one query |
#
# target_len is the number of tokens that ask, source_len the number of tokens that answer; in self-attention the two
# are equal. $d_v$ is the dimension of a value, $d_k$ that of a query and of a key: how many numbers it has. In the
# paper $d_k$ is 64, so the scores are divided by 8. Why?

# %%
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import matplotlib.pyplot as plt
import numpy as np

import keras_transformer as kt
from keras_transformer.fonts import font_families

keras.utils.set_random_seed(5)
random = np.random.default_rng(5)


def softmax(scores):
    """Turns each row of scores into shares that sum to 1."""
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


# %% [markdown]
# ## More dimensions make larger dot products
#
# At the start of training, the numbers in a query and in a key are much like random numbers, with mean 0 and standard
# deviation 1. How large is their dot product? Let us draw 20,000 pairs for some dimensions, and look.

# %%
lengths = [4, 16, 64, 256]
print("d_k   standard deviation of q·k   square root of d_k")
for d_k in lengths:
    products = np.sum(random.normal(size=(20_000, d_k)) * random.normal(size=(20_000, d_k)), axis=1)
    print(f"{d_k:3}   {products.std():25.2f}   {np.sqrt(d_k):18.2f}")
    np.testing.assert_allclose(products.std(), np.sqrt(d_k), rtol=0.05)

# %% [markdown]
# The reason fits in a few lines. A dot product is a sum of $d_k$ products:
#
# $$q \cdot k = q_1 k_1 + q_2 k_2 + \dots + q_{d_k} k_{d_k}$$
#
# Each product has mean 0 and variance 1. The variances of independent terms add up, so the sum has variance $d_k$,
# and its standard deviation is $\sqrt{d_k}$. (This is the footnote of section 3.2.1 in the paper.)
#
# For $d_k = 64$ the scores of two keys typically differ by about 11 ($8 \cdot \sqrt 2$). Softmax turns a difference of
# 11 into a factor of $e^{11} \approx 60{,}000$. One key takes nearly all.

# %% [markdown]
# ## A softmax that is sure learns nothing
#
# Why is that bad? Sometimes one key *should* take all. The trouble is the beginning: the scores are random, so the
# winner is random, too, and the model must be able to change its mind. Training changes a weight by its gradient. The
# gradient of softmax says how much the share $w_i$ changes with the score $z_j$:
#
# $$\frac{\partial w_i}{\partial z_j} = w_i (\delta_{ij} - w_j)$$
#
# $\delta_{ij}$ is 1 for $i = j$ and 0 otherwise. If one share is 1 and the others are 0, every entry of this matrix is
# 0. Nothing flows back to the queries and keys.
#
# We measure two things for 16 random keys: the largest share, and the size of this matrix. We do it for three ways
# to divide: by nothing, by $\sqrt{d_k}$, and by $d_k$.


# %%
def largest_share_and_gradient(d_k, divisor, trials=400, num_keys=16):
    """Returns the mean of the largest share, and the mean size of softmax's gradient."""
    query = random.normal(size=(trials, 1, d_k))
    keys = random.normal(size=(trials, num_keys, d_k))
    shares = softmax(np.sum(query * keys, axis=-1) / divisor)
    gradient = shares[:, :, None] * (np.eye(num_keys) - shares[:, None, :])
    return shares.max(axis=-1).mean(), np.linalg.norm(gradient, axis=(1, 2)).mean()


widths = [4, 8, 16, 32, 64, 128, 256, 512, 1024]
measured = {
    "not divided": [largest_share_and_gradient(d, 1) for d in widths],
    "divided by √d_k": [largest_share_and_gradient(d, np.sqrt(d)) for d in widths],
    "divided by d_k": [largest_share_and_gradient(d, d) for d in widths],
}
names, axis_labels = (
    list(measured),
    ["d_k, dimension of a query", "largest of 16 shares", "size of the gradient"],
)
titles = ["How much one key takes", "How much flows back"]

# %% tags=["hide-input"]
plt.rcParams["font.family"] = font_families(*names, *axis_labels, *titles)
figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 3.8), layout="constrained")
for name, colour in zip(names, ["#d1603d", "#3a6ea5", "#707070"], strict=True):
    largest, gradient = np.transpose(measured[name])
    left.semilogx(widths, largest, "o-", color=colour, label=name, base=2)
    right.semilogx(widths, gradient, "o-", color=colour, label=name, base=2)
left.axhline(1 / 16, color="black", linewidth=0.8, linestyle=":")
left.set(title=titles[0], xlabel=axis_labels[0], ylabel=axis_labels[1], ylim=(0, 1))
right.set(title=titles[1], xlabel=axis_labels[0], ylabel=axis_labels[2], ylim=(0, None))
for axes in (left, right):
    axes.set_xticks(widths, map(str, widths))
    axes.minorticks_off()
left.legend()
plt.show()

# %% [markdown]
# **What to look at.** The blue lines are flat: after division by $\sqrt{d_k}$ it does not matter how many dimensions
# the vectors have. Without division (orange) one key takes more and more as the dimension grows, and the gradient on
# the right goes towards zero. Division by $d_k$ (grey) goes too far: all keys get nearly the same share, close to the
# dotted line at $1/16$, whatever the query asks. The gradient is not small there, but attention cannot tell the keys
# apart.

# %% [markdown]
# ![Five bars: with d_k = 64 and no division one key takes nearly all](../../docs/images/motion_softmax.svg)
#
# On the site this picture has sliders. Raise $d_k$: one key takes all. Then divide by its root: the weights are those
# of $d_k = 1$ again. With the temperature $T$ you divide the scores by hand. Chapter 14 uses it.

# %%
not_divided, by_root, by_length = (dict(zip(widths, measured[name], strict=True)) for name in names)
assert not_divided[1024][0] > 0.9 and not_divided[1024][1] < 0.5 * by_root[1024][1]
assert abs(by_root[1024][0] - by_root[16][0]) < 0.05  # flat
assert by_length[1024][0] < 0.08  # nearly 1 / 16

# %% [markdown]
# ## The formula in code
#
# One line of chapter 4 changes.


# %%
def attention(q, k, v):
    """Equation 1 of the paper."""
    weights = softmax(q @ k.T / np.sqrt(k.shape[-1]))
    return weights @ v, weights


queries = np.array([[1, 0, 2], [2, 2, 2], [2, 1, 3]])
keys = np.array([[0, 1, 1], [4, 4, 0], [2, 3, 1]])
values = np.array([[1, 2, 3], [2, 8, 0], [2, 6, 3]])
outputs, weights = attention(queries, keys, values)
print("without scaling", softmax(queries @ keys.T).round(3), "with scaling", weights.round(3), sep="\n")

# %% [markdown]
# These are the numbers of chapter 4. The order of the shares in a row is the same as before. But in the second row,
# where one token got nearly everything, the third token now gets about a tenth.

# %%
np.testing.assert_allclose(weights[1], [0.001, 0.909, 0.090], atol=1e-3)
assert (weights.argsort(axis=-1)[1:] == softmax(queries @ keys.T).argsort(axis=-1)[1:]).all()

# %% [markdown]
# ## The same with the library
#
# `kt.layers.dot_product_attention` divides by $\sqrt{d_k}$ unless you say otherwise. Now with the size of the paper:
# $d_k = 64$, a sentence of 5 words, and 7 words to look at.

# %%
q, k, v = random.normal(size=(5, 64)), random.normal(size=(7, 64)), random.normal(size=(7, 64))
context, shares = kt.layers.dot_product_attention(
    *(array[None, None].astype("float32") for array in (q, k, v))
)
expected, expected_shares = attention(q, k, v)
np.testing.assert_allclose(context[0, 0], expected, atol=1e-5)
np.testing.assert_allclose(shares[0, 0], expected_shares, atol=1e-6)
print("Q", q.shape, "K", k.shape, "V", v.shape, "weights", shares.shape[2:], "result", context.shape[2:])

# %% [markdown]
# Frameworks have this formula built in, too. Keras's own function takes its axes in another order (the heads come
# third), and gives the same numbers.

# %%
by_keras = keras.ops.dot_product_attention(*(array[None, :, None].astype("float32") for array in (q, k, v)))
np.testing.assert_allclose(by_keras[0, :, 0], expected, atol=1e-5)

# %% [markdown]
# ## Does it matter in a trained model?
#
# A model could learn the factor: it only has to make its query matrix smaller. But first it must learn this with
# those small gradients. So the division adds no new ability. It makes a good start. The paper found that for large
# $d_k$ attention without it does worse than additive attention (section 3.2.1). That is the older kind, which has a
# small network in place of the dot product (Bahdanau et al., 2015).

# %% [markdown]
# ## Exercise
#
# ### Five minutes
#
# The numbers in a query and in a key have standard deviation **2** instead of 1, and $d_k = 64$.
#
# 1. What is the standard deviation of their dot product?
# 2. What is it after division by $\sqrt{d_k}$? Is this a problem?
# 3. By what would you have to divide?
#
# Derive it on paper, then check it with random numbers.

# %% tags=["hide-cell"]
q, k = 2 * random.normal(size=(2, 50_000, 64))
products = np.sum(q * k, axis=1)
# 1. Each term now has variance 4 * 4 = 16, the sum has 64 * 16, and the standard deviation is 8 * 4 = 32.
np.testing.assert_allclose(products.std(), 32, rtol=0.03)
# 2. It is 4 after the division: softmax is too sure again. The factor relies on inputs of size 1,
# and layer normalisation (chapter 9) gives them this size.
np.testing.assert_allclose((products / np.sqrt(64)).std(), 4, rtol=0.03)
# 3. Divide by 32, the standard deviation itself.
np.testing.assert_allclose((products / 32).std(), 1, rtol=0.03)
print(
    "standard deviation:",
    products.std().round(1),
    (products / 8).std().round(2),
    (products / 32).std().round(3),
)

# %% [markdown]
# ### An hour
#
# The scores of a long sentence do not fit into memory. Write `attention_in_parts(query, parts)` for one query.
# `parts` yields pairs of keys and values, and each pair is overwritten when the next one comes, so you cannot keep
# it. Return the output of scaled dot-product attention to all of them. It must also hold for scores of some hundreds:
# $e^{400}$ is a large number, and $e^{800}$ is none.
#
# Write it in a file `answer.py`, with NumPy alone. `python course/check.py 5 answer.py` says which of its properties
# hold. No solution is published.
#
# ### A project
#
# Train the small translator of chapter 16 with the scale $1 / \sqrt{d_k}$, without a scale, and with $1 / d_k$. Take
# three seeds each, and $d_k$ of 16 and 128. Draw the losses and the mean entropy of the attention weights by step.
# Does the argument of this chapter say what you see?

# %% [markdown]
# ## What to read next
#
# - Vaswani et al., 2017, ["Attention Is All You Need"](https://arxiv.org/abs/1706.03762), section 3.2.1
#   and its footnote
# - Bahdanau et al., 2015, ["Neural Machine Translation by Jointly Learning to Align and
#   Translate"](https://arxiv.org/abs/1409.0473): additive attention, section 3.1
# - The documents of this library: the reference of `dot_product_attention` (its arguments `scale` and `soft_cap`)
# - Next chapter: **6. Several heads**
