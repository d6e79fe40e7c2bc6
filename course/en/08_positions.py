# %% [markdown]
# # 8. Positions
#
# After this chapter you know why attention needs positions, how sines and cosines number the places, and how to read
# the heat map of the paper's encoding. You also know what the encoding makes easy: to look a fixed number of steps
# back.
#
# **Before:** chapters 4 to 7.

# %% [markdown]
# ## Without positions there is no order
#
# A recurrent model reads one word after another, so it knows the order. Attention takes all words at once. A score
# compares the *contents* of two words. It does not depend on where they stand. Words without their order are called a
# *bag of words*. Attention cannot tell {home, go, I} from {I, go, home}. We exchange the words of an input, and the
# outputs are exchanged in the same way. Nothing else changes.

# %%
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import matplotlib.pyplot as plt
import numpy as np

import keras_transformer as kt
from keras_transformer.fonts import font_families

keras.utils.set_random_seed(8)
random = np.random.default_rng(8)

# %%
words = {word: random.normal(size=16) for word in ("I", "go", "home")}
attention = kt.MultiHeadAttention(num_heads=2, key_dim=8)


def outputs(*sentence, positions=None):
    """Computes self-attention over a sentence: a dict from each word to its output."""
    x = np.array([[words[word] for word in sentence]], "float32")
    x = x if positions is None else positions(x)
    return dict(zip(sentence, attention(x, x)[0].numpy(), strict=True))


forwards, backwards = outputs("I", "go", "home"), outputs("home", "go", "I")
for word in words:
    np.testing.assert_allclose(forwards[word], backwards[word], atol=1e-6)
print("without positions: the same outputs")

encoding = kt.PositionalEncoding()
forwards = outputs("I", "go", "home", positions=encoding)
backwards = outputs("home", "go", "I", positions=encoding)
for word in words:
    print(f"{word:5s} moved by {np.abs(forwards[word] - backwards[word]).max():.3f}")
assert all(np.abs(forwards[word] - backwards[word]).max() > 0.01 for word in ("I", "home"))

# %% [markdown]
# ## Hands of a clock
#
# How do we number the places? "17" as one more number has drawbacks: it grows without end, and position 500 may never
# have come in training. The paper *adds* a vector to each embedding. Its numbers stay between −1 and 1, however long
# the text. Channel $2i$ is a sine and channel $2i + 1$ a cosine, of one frequency for each pair:
#
# $$PE_{(pos, 2i)} = \sin\!\left(\frac{pos}{10000^{2i / d}}\right) \qquad
# PE_{(pos, 2i+1)} = \cos\!\left(\frac{pos}{10000^{2i / d}}\right)$$
#
# $pos$ is the position and $i$ the number of the pair, both counted from 0, and $d$ is $d_{model}$. A channel is one
# number of the vector. Think of clocks. The first pair is a quick hand: it goes round once in $2\pi \approx 6.3$
# positions. The next one is a little slower. With $d = 128$, the last pair needs about 54,000 positions for one round
# (the limit is $2\pi \cdot 10000 = 62{,}832$). One quick hand cannot tell noon from midnight; all hands together name
# each position.
#
# Why added, and not concatenated? The paper gives no reason. If you concatenate the vector $x$ of a word and the
# vector $p$ of its position, and multiply by a matrix, you get $[x; p]\, W = x W_1 + p W_2$. This is a sum, too.
# Adding is the case $W_1 = W_2$, and it needs no wider vectors. Embeddings are learned, so a word can keep to
# directions that the positions hardly use.

# %%
length, d_model, longest = 50, 128, 10_000

positions = np.arange(length)[:, None]
pairs = np.arange(0, d_model, 2)[None]
angles = positions / longest ** (pairs / d_model)
table = np.empty((length, d_model))
table[:, 0::2] = np.sin(angles)
table[:, 1::2] = np.cos(angles)

np.testing.assert_allclose(table[0, :4], [0, 1, 0, 1])
np.testing.assert_allclose(table[1, :2], [np.sin(1), np.cos(1)])
assert np.abs(table).max() <= 1
np.testing.assert_allclose(encoding(np.zeros((1, length, d_model)))[0], table, atol=1e-5)

distances = np.linalg.norm(table[:, None] - table[None], axis=-1)
nearest = distances[~np.eye(length, dtype=bool)].min()
print(f"smallest distance between two of 50 positions: {nearest:.2f}")
assert nearest > 1  # no two positions are alike

# %% [markdown]
# The heat map shows 50 positions and 128 channels. Read a row: it is what is added to the word at this place. Read two
# columns side by side, a sine and its cosine: they are one hand of the clock. On the left the colours change from row
# to row, on the right they hardly change: the cosines stay near 1, the sines near 0.

# %%
title = "Positional encoding: sine on even channels, cosine on odd ones. Waves get longer to the right."
kt.plots.positions(encoding, length=50, d_model=128, title=title, xlabel="channel", ylabel="position")

# %% [markdown]
# ![Four clocks, each with a hand for position 3 and one for position 5](../../docs/images/motion_clocks.svg)
#
# Four clocks for $d = 8$: the blue hand is the position, the dashed one stands $k$ positions further. On the site,
# move the position: all hands turn, the left one quickly. Then look at the angle between the two hands of a clock. It
# does not change.

# %% [markdown]
# ## Why sines? A step is a rotation
#
# At position $p$, the pair with the frequency $\omega = 10000^{-2i/d}$ is $(\sin \omega p, \cos \omega p)$. Position
# $p + k$ is the same pair, turned by the angle $\omega k$. The turn depends on $k$ alone, not on $p$. So one matrix
# moves *every* position by $k$. If the matrix that makes the queries learns this rotation, the attention layer can look
# $k$ steps back from wherever it is. The paper *hypothesised* that this makes it easy to learn to attend by relative
# positions (section 3.5). It did not check whether trained models do so.

# %%
k = 3
rates = 1 / longest ** (pairs[0] / d_model)
turn = np.zeros((d_model, d_model))
for i, rate in enumerate(rates):
    sine, cosine = np.sin(rate * k), np.cos(rate * k)
    turn[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = [[cosine, -sine], [sine, cosine]]
np.testing.assert_allclose(table[:-k] @ turn, table[k:], atol=1e-9)
print("one matrix moves all positions by", k)

# %% [markdown]
# The product of two positions tells how far apart they are: it is $\sum_i \cos(\omega_i (p - q))$, which depends on the
# distance alone. Look at the curve: it is highest at 0, and it falls on both sides, with small ripples.

# %%
products = table @ table.T
np.testing.assert_allclose(products[10, 15], products[30, 35])
np.testing.assert_allclose(np.diag(products), d_model / 2)
names = ("distance from position 25", "dot product")

# %% tags=["hide-input"]
plt.rcParams["font.family"] = font_families(*names)
figure, axes = plt.subplots(figsize=(6.5, 2.8), layout="constrained")
axes.plot(np.arange(length) - 25, products[25], color="#3a6ea5")
axes.set(xlabel=names[0], ylabel=names[1])
plt.show()

# %% [markdown]
# ## Other ways to number places
#
# | positions | how | in the library |
# | --- | --- | --- |
# | sinusoidal (the paper) | a fixed vector is added | `PositionalEncoding` |
# | learned (BERT, GPT-2) | a trained vector is added; there is a last one | `LearnedPositions` |
# | rotary (Llama) | queries and keys are turned, by the rotation above | `RotaryPositions` |
# | bias (T5, ALiBi) | a number for the distance is added to the score | `RelativePositionBias`, `ALiBi` |

# %% [markdown]
# ## Exercise
#
# ### Five minutes
#
# The embedding of a word is multiplied by $\sqrt{d_{model}}$ before the positions are added (section 3.4). Embeddings
# start with random numbers of standard deviation $1 / \sqrt{d_{model}}$. Let $d_{model} = 128$.
#
# 1. How long is the vector of a position? (Each pair has length 1.)
# 2. How long is a word's vector about, before and after the factor? Which of the two, word or position, would count
#    more without the factor?

# %% tags=["hide-cell"]
# 1. 64 pairs of length 1 make a vector whose length is the root of 64, which is 8.
np.testing.assert_allclose(np.linalg.norm(table, axis=1), np.sqrt(64))
vectors = random.normal(size=(1000, 128)) / np.sqrt(128)
before, after = (np.linalg.norm(vectors * factor, axis=1).mean() for factor in (1, np.sqrt(128)))
print(f"word before {before:.2f}, after {after:.2f}, position 8.00")
# 2. Before: 1 against 8, the word would hardly count. After: 11.3 against 8.
np.testing.assert_allclose([before, after], [1, np.sqrt(128)], rtol=0.02)

# %% [markdown]
# ### An hour
#
# Today's models turn queries and keys instead of adding positions. Write `rotate(x, places)` for rows of $d$ numbers.
# Numbers $2i$ and $2i + 1$ of a row are the hand of a clock. At place $p$ turn it anticlockwise by the angle
# $p / 10000^{2i/d}$.
#
# Write it in a file `answer.py`, with NumPy alone. `python course/check.py 8 answer.py` says which of its properties
# hold. No solution is published.
#
# ### A project
#
# Train the reverser of chapter 2 as a small Transformer, with sums of sines, with learned positions and with
# rotations. Train with sentences of up to 20 words, and test with 20 to 60. Which positions can count farther than
# they have seen? Explain the difference.

# %% [markdown]
# ## What to read next
#
# - Vaswani et al., 2017, ["Attention Is All You Need"](https://arxiv.org/abs/1706.03762), section 3.5, and table 3,
#   row (E): learned positions do as well
# - Su et al., 2021, ["RoFormer"](https://arxiv.org/abs/2104.09864): the rotation inside attention
# - The next chapter: **9. The block**
