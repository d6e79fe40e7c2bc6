# %% [markdown]
# # 4. Self-attention by hand
#
# After this chapter you can compute self-attention with a pencil: three tokens, three small matrices, whole numbers.
# You also know which line of the computation is which part of a layer, because the library's layer gives the same
# numbers.
#
# **Before:** chapter 3 (query, key, value as a soft look-up). You need to multiply a row by a matrix.

# %% [markdown]
# ## One sequence asks itself
#
# In chapter 2 the decoder asked and the encoder answered. There were two sequences of tokens. In *self-attention* there
# is one sequence, and each token of it asks all tokens of it, itself included. The result is a new vector for each
# token. It also holds information from the other tokens.
#
# A token has three roles, and it needs a vector for each of them:
#
# - as **query** it asks: what do I need to know?
# - as **key** it says: this is what I know about.
# - as **value** it gives: this is my contribution.
#
# All three come from the same input vector $x$, by three matrices that the model learns:
#
# $$q = x W^Q \qquad k = x W^K \qquad v = x W^V$$

# %%
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import matplotlib.pyplot as plt
import numpy as np

import keras_transformer as kt
from keras_transformer.fonts import font_families

keras.utils.set_random_seed(4)

# %% [markdown]
# ## Step 1: inputs and matrices
#
# Three tokens, and four numbers for each. In a real model these rows are embeddings, the vectors of the tokens. The
# matrices have 4 rows, one for each number of the input, and 3 columns: queries, keys and values get 3 numbers. A real
# model learns the matrices; here they are given, with small whole numbers.

# %%
x = np.array([[1, 0, 1, 0], [0, 2, 0, 2], [1, 1, 1, 1]])
w_key = np.array([[0, 0, 1], [1, 1, 0], [0, 1, 0], [1, 1, 0]])
w_query = np.array([[1, 0, 1], [1, 0, 0], [0, 0, 1], [0, 1, 1]])
w_value = np.array([[0, 2, 0], [0, 3, 0], [1, 0, 3], [1, 1, 0]])

# %% [markdown]
# ## Step 2: keys, values, queries
#
# The first key on paper. The first input is $[1, 0, 1, 0]$. It takes the first and the third row of $W^K$ and adds
# them:
#
# $$[0, 0, 1] + [0, 1, 0] = [0, 1, 1]$$
#
# Do the second one yourself before you run the cell. (Twice the second row and twice the fourth row.)

# %%
keys = x @ w_key
values = x @ w_value
queries = x @ w_query
print("keys", keys, "values", values, "queries", queries, sep="\n")

np.testing.assert_array_equal(keys, [[0, 1, 1], [4, 4, 0], [2, 3, 1]])
np.testing.assert_array_equal(values, [[1, 2, 3], [2, 8, 0], [2, 6, 3]])
np.testing.assert_array_equal(queries, [[1, 0, 2], [2, 2, 2], [2, 1, 3]])

# %% [markdown]
# ## Step 3: the scores of the first query
#
# The first query is $q_1 = [1, 0, 2]$. Its score for a key is the dot product:
#
# | key | dot product with $[1, 0, 2]$ | score |
# | --- | --- | --- |
# | $k_1 = [0, 1, 1]$ | $1 \cdot 0 + 0 \cdot 1 + 2 \cdot 1$ | 2 |
# | $k_2 = [4, 4, 0]$ | $1 \cdot 4 + 0 \cdot 4 + 2 \cdot 0$ | 4 |
# | $k_3 = [2, 3, 1]$ | $1 \cdot 2 + 0 \cdot 3 + 2 \cdot 1$ | 4 |
#
# The first token finds the second and the third token equally useful, and more useful than itself.

# %%
first_scores = queries[0] @ keys.T
print(first_scores)
np.testing.assert_array_equal(first_scores, [2, 4, 4])

# %% [markdown]
# ## Step 4: softmax
#
# Softmax turns scores into shares: it takes $e^{\text{score}}$ of each, and divides by the sum. All shares are
# positive, and together they make 1. On paper we round roughly: $[0, 0.5, 0.5]$. The computer keeps a little for the
# first token.


# %%
def softmax(scores):
    """Turns each row of scores into shares that sum to 1."""
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


first_weights = softmax(first_scores)
on_paper = np.array([0.0, 0.5, 0.5])
print("exact   ", first_weights.round(4))
print("on paper", on_paper)
np.testing.assert_allclose(first_weights, [0.0634, 0.4683, 0.4683], atol=1e-4)

# %% [markdown]
# ## Step 5: mix the values
#
# The output for the first token is the sum of all values, each times its share. With the shares from paper:
#
# $$0 \cdot [1, 2, 3] + 0.5 \cdot [2, 8, 0] + 0.5 \cdot [2, 6, 3] = [2, 7, 1.5]$$
#
# With the exact shares the result is close to that.

# %%
first_output = first_weights @ values
print("exact   ", first_output.round(2))
print("on paper", on_paper @ values)
np.testing.assert_array_equal(on_paper @ values, [2, 7, 1.5])
np.testing.assert_allclose(first_output, [1.94, 6.68, 1.60], atol=0.005)

# %% [markdown]
# ## All tokens at once
#
# The second and the third token do the same with their own queries. Nobody waits for anybody: the second token does not
# need the output of the first one. So all scores are one product of matrices, $QK^\top$. Row $i$ and column $j$ hold
# the score of query $i$ for key $j$. All outputs are another product. Once there are queries, keys and values, three
# lines of code are the whole of self-attention:

# %%
scores = queries @ keys.T
weights = softmax(scores)
outputs = weights @ values

np.testing.assert_allclose(scores[0], first_scores)
np.testing.assert_allclose(outputs[0], first_output)


# %%
def draw(axes, table, title, columns, rows):
    """Draws a table of numbers, darker for a larger number."""
    axes.imshow(table, cmap="Blues", vmin=0, vmax=1.6 * table.max(), aspect="auto")
    for (row, column), number in np.ndenumerate(table):
        axes.text(column, row, f"{number:.3g}" if number >= 0.001 else "0.000", ha="center", va="center")
    axes.set_title(title)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.tick_params(length=0)


names = ["token 1", "token 2", "token 3"]
titles = ["scores: queries times keys", "softmax: each row sums to 1", "outputs: shares times values"]
labels = ["asks (query)", "is asked (key)", "channel of the output"]

# %% tags=["hide-input"]
plt.rcParams["font.family"] = font_families(*names, *titles, *labels)
figure, (left, middle, right) = plt.subplots(1, 3, figsize=(10.5, 3), layout="constrained")
draw(left, scores, titles[0], names, names)
draw(middle, weights, titles[1], names, names)
draw(right, outputs, titles[2], ["1", "2", "3"], names)
left.set(xlabel=labels[1], ylabel=labels[0])
middle.set_xlabel(labels[1])
right.set_xlabel(labels[2])
plt.show()

# %% [markdown]
# **What to look at.** Read one row from left to right. In the first row the scores 2, 4, 4 become 0.06, 0.47, 0.47,
# and the output lies between the second and the third value. In the second row the scores are 4, 16, 12, and softmax
# gives nearly everything to token 2: its output is almost the second value, $[2, 8, 0]$. A difference of 4 between
# two scores is already a factor of $e^4 \approx 55$. Chapter 5 is about this.

# %% [markdown]
# ## The same with the library
#
# `kt.layers.dot_product_attention` does steps 3 to 5. Its arrays have two more axes: a batch of sequences, and heads
# (chapter 6). We have one of each. `scale=1.0` says that the scores stay as they are.

# %%
q, k, v = (array[None, None].astype("float32") for array in (queries, keys, values))
context, shares = kt.layers.dot_product_attention(q, k, v, scale=1.0)
print("shape: (batch, heads, tokens, channels) =", context.shape)
np.testing.assert_allclose(context[0, 0], outputs, atol=1e-5)
np.testing.assert_allclose(shares[0, 0], weights, atol=1e-6)

# %% [markdown]
# `kt.layers.MultiHeadAttention` is the layer that models use. It has the three matrices inside, and does all five
# steps. We put our matrices in. Two details differ from our paper:
#
# - The layer divides each score by the root of the dimension $d_k$ of a key, here $\sqrt 3$ (chapter 5). We multiply
#   the query matrix by $\sqrt 3$, so that the two cancel.
# - The layer has a fourth matrix $W^O$ at its end, for joining the heads (chapter 6). We set it to the identity, which
#   changes nothing.

# %%
layer = kt.layers.MultiHeadAttention(num_heads=1, key_dim=3, use_bias=False, output_shape=3)
inputs = x[None].astype("float32")
layer.build(inputs.shape, inputs.shape)
for weight in layer.weights:
    print(weight.path, tuple(weight.shape))

layer.set_weights(
    [
        (w_query * np.sqrt(3))[:, None, :],  # (d_model, heads, d_k)
        w_key[:, None, :],
        w_value[:, None, :],
        np.eye(3)[None],  # (heads, d_v, d_model)
    ]
)
result, layer_weights = layer(inputs, inputs, return_attention_scores=True)
np.testing.assert_allclose(result[0], outputs, atol=1e-5)
np.testing.assert_allclose(layer_weights[0, 0], weights, atol=1e-6)
print(np.round(result[0], 2))

# %% [markdown]
# `layer(inputs, inputs)` shows it: you pass the same sequence twice, once for the queries, once for the keys and
# values. That is the "self" of self-attention. In chapter 2 there were two sequences.

# %% [markdown]
# ## Exercise
#
# ### Five minutes
#
# 1. Compute the output of the **third** token on paper. Its query is $[2, 1, 3]$. Write the three scores first, and
#    guess the shares before you compute them.
# 2. Exchange the first and the third token: the input is now $x_3, x_2, x_1$. What happens to the outputs? Which
#    numbers change, and which only move?

# %% tags=["hide-cell"]
# 1. The scores are 4, 12, 10. The second token gets nearly everything, and the third about a tenth.
third_scores = queries[2] @ keys.T
np.testing.assert_array_equal(third_scores, [4, 12, 10])
third_output = softmax(third_scores) @ values
np.testing.assert_allclose(third_output, [2.0, 7.76, 0.36], atol=0.005)
print("scores", third_scores, "shares", softmax(third_scores).round(3), "output", third_output.round(2))

swapped = x[[2, 1, 0]]
swapped_weights = softmax((swapped @ w_query) @ (swapped @ w_key).T)
swapped_outputs = swapped_weights @ (swapped @ w_value)
# 2. The outputs move with their tokens, and no number changes: attention does not know the order (chapter 8).
np.testing.assert_allclose(swapped_outputs, outputs[[2, 1, 0]])

# %% [markdown]
# ### An hour
#
# Now the other way round: choose the matrices. Write `kernels(x, places, given)`. It returns $W^Q$, $W^K$ and $W^V$,
# so that token $i$ gives more than 0.99 of its weight to token `places[i]`. Its output is then the row
# `given[places[i]]`. Scores are not scaled, as in this chapter. The rows of `x` are linearly independent.
# `np.linalg.pinv` helps.
#
# Write it in a file `answer.py`, with NumPy alone. `python course/check.py 4 answer.py` says which of its properties
# hold. No solution is published.
#
# ### A project
#
# Write a page on which the reader moves one number of a token by a slider, and sees queries, keys, scores, weights
# and outputs change. Use any tool that you like. Show it to somebody who does not know attention, and write down
# where he or she is lost.

# %% [markdown]
# ## What to read next
#
# - Vaswani et al., 2017, ["Attention Is All You Need"](https://arxiv.org/abs/1706.03762), section 3.2.1: the same three
#   lines as one formula
# - The documents of this library: *Building blocks*, and the reference of `MultiHeadAttention` and
#   `dot_product_attention`
# - Next chapter: **5. Scaled dot-product attention**. In the second row of the picture, one token gets nearly
#   everything. The chapter shows why this harms learning, and how $\sqrt{d_k}$ repairs it.
