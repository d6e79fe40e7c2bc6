# %% [markdown]
# # 9. The block
#
# After this chapter you can build the Transformer from its parts: the residual connection, layer normalisation, the
# feed-forward network, the encoder layer and the decoder layer with its cross-attention. You compute an encoder layer
# by hand and get the library's numbers.
#
# **Before:** chapters 6 to 8 (heads, masks, positions).

# %% [markdown]
# ![The Transformer, with the part of this chapter in colour](../../docs/images/transformer_9.svg)
#
# The whole model. In colour is what this chapter builds: the layers, their sublayers and the connections round them.
# `Q`, `K` and `V` are queries, keys and values.

# %% [markdown]
# ## The residual connection
#
# Attention replaces each vector by a mixture of others. After six layers little would be left of the word itself. So
# each sublayer only *adds* to its input:
#
# $$x + \text{Sublayer}(x)$$
#
# The input has a *shortcut* (skip connection) through all layers, and so has the gradient on its way back. We measure
# that: the gradient at the first of 30 layers, with the shortcut and without it. We take the simplest layers, which
# multiply by one random matrix. The chain rule multiplies the derivatives of the layers. Without the shortcut the
# derivative of a layer is its matrix. With it, the derivative is the matrix plus the identity.

# %%
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import matplotlib.pyplot as plt
import numpy as np

import keras_transformer as kt
from keras_transformer.fonts import font_families

keras.utils.set_random_seed(9)
random = np.random.default_rng(9)

# %%
depth, width = 30, 64
kernels = random.normal(size=(depth, width, width)) * 0.5 / np.sqrt(width)
slopes = {"with residual": [], "without": []}
for name, shortcut in zip(slopes, (np.eye(width), 0), strict=True):
    gradient = np.eye(width)
    for kernel in kernels[::-1]:
        gradient = (shortcut + kernel) @ gradient  # the chain rule, layer by layer
        slopes[name].append(np.linalg.norm(gradient) / np.sqrt(width))
    print(f"{name}: {slopes[name][-1]:.2e}")
with_shortcut, without = (values[-1] for values in slopes.values())
assert without < 1e-6 < 1 < with_shortcut

# %% [markdown]
# ## Layer normalisation
#
# With the shortcut the numbers *grow* from layer to layer. So each sum is normalised: the mean of the vector becomes 0
# and its standard deviation 1. Then a scale $\gamma$ and a shift $\beta$, which the model learns, set what is best:
#
# $$\text{LayerNorm}(x) = \gamma \cdot \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta$$
#
# $\mu$ and $\sigma^2$ are the mean and the variance of the vector, and $\epsilon$ is a small number that avoids a
# division by 0. *Batch* normalisation takes the mean over the examples of a batch, for each channel. *Layer*
# normalisation takes it over the channels, for each token alone. In the table the rows are tokens and the columns
# channels: batch norm works down a column, layer norm along a row. So layer norm needs no neighbours: a sentence gets
# the same numbers alone and in a batch, in training and afterwards.


# %%
def layer_norm(x, epsilon=1e-6):
    """Normalises each row."""
    return (x - x.mean(axis=-1, keepdims=True)) / np.sqrt(x.var(axis=-1, keepdims=True) + epsilon)


rows = random.normal(3, 5, size=(4, 6))
np.testing.assert_allclose(layer_norm(rows).mean(axis=1), 0, atol=1e-9)
np.testing.assert_allclose(layer_norm(rows).std(axis=1), 1, atol=1e-5)
np.testing.assert_allclose(layer_norm(rows)[:1], layer_norm(rows[:1]))  # alone as in the batch


def batch_norm(x):
    """Normalises each column."""
    return (x - x.mean(axis=0)) / np.sqrt(x.var(axis=0) + 1e-6)


assert np.abs(batch_norm(rows)[:1] - batch_norm(rows[:2])[:1]).max() > 0.1  # neighbours change it

names = ("batch norm: each column", "layer norm: each row")
labels = ("channels", "tokens", "layers passed", "size of the gradient")

# %% tags=["hide-input"]
plt.rcParams["font.family"] = font_families(*names, *labels, *slopes)
figure, (left, middle, right) = plt.subplots(1, 3, figsize=(10.5, 3), layout="constrained")
for name, values in slopes.items():
    left.semilogy(range(1, depth + 1), values, label=name)
left.set(xlabel=labels[2], ylabel=labels[3])
left.legend()
for axes, table, name in ((middle, batch_norm(rows), names[0]), (right, layer_norm(rows), names[1])):
    axes.imshow(table, cmap="RdBu", vmin=-2, vmax=2)
    axes.set(title=name, xlabel=labels[0], ylabel=labels[1])
plt.show()

# %% [markdown]
# **What to look at.** On the left, without the shortcut the gradient vanishes within 30 layers. The other two pictures
# show the same table, normalised in two ways. Each column of the middle table has mean 0, each row of the right one.
#
# ## The feed-forward network
#
# Attention mixes tokens: each output is a weighted mean of values. What each token makes of the mixture is the work of
# two dense layers with a ReLU between them. They are the same at each position, so the paper calls them
# *position-wise*:
#
# $$\text{FFN}(x) = \max(0,\ x W_1 + b_1)\, W_2 + b_2$$
#
# The inner layer is wide: $d_{ff} = 2048$ for $d_{model} = 512$.
#
# ## The encoder layer
#
# Now everything together. The paper's order is *post-norm*: add, then normalise.
#
# $$y = \text{LayerNorm}(x + \text{Attention}(x)) \qquad z = \text{LayerNorm}(y + \text{FFN}(y))$$

# %%
d_model, num_heads, d_ff, length = 16, 4, 64, 5
layer = kt.EncoderLayer(num_heads, d_ff)
x = random.normal(size=(1, length, d_model)).astype("float32")
outputs = layer(x)

attention, network = layer.self_attention, layer.feed_forward
w1, b1, w2, b2 = (weight.numpy() for weight in network.weights)
y = layer_norm(x + attention(x, x).numpy())
z = layer_norm(y + np.maximum(0, y @ w1 + b1) @ w2 + b2)
np.testing.assert_allclose(outputs, z, atol=1e-4)
print({weight.path.split("/", 1)[1]: tuple(weight.shape) for weight in layer.weights})
assert w1.shape == (d_model, d_ff) and w2.shape == (d_ff, d_model)

# %% [markdown]
# The output has the shape of the input. So layers can be stacked: the paper stacks 6. `normalize_first=True` gives
# *pre-norm*, $x + \text{Sublayer}(\text{LayerNorm}(x))$, which trains without a warm-up (chapter 12a). Most language
# models since GPT-2 use it.
#
# In training there is *dropout*, too. Dropout sets numbers of a vector to 0, each with a fixed probability, 0.1 in the
# paper, and scales the others up to make up for it. It sits at two places (section 5.4). One is the output of each
# sublayer, before it is added to the input: $\text{LayerNorm}(x + \text{Dropout}(\text{Sublayer}(x)))$. The other is
# the sum of embeddings and positions. After training dropout does nothing, so the calculation above does not show it.
#
# ## The decoder layer
#
# A decoder layer has three sublayers. The first is *masked* self-attention over what is written so far. The second is
# **cross-attention** (the paper says encoder-decoder attention): the queries come from the decoder, the keys and
# values from the encoder's output. So each word that is written looks at the whole source. The third is the
# feed-forward network.

# %%
decoder = kt.DecoderLayer(num_heads, d_ff)
source = random.normal(size=(1, 7, d_model)).astype("float32")
memory = layer(source)
target = random.normal(size=(1, length, d_model)).astype("float32")
written, (self_scores, cross_scores) = decoder(target, memory, return_attention_scores=True)
print("output", tuple(written.shape))
print("self-attention: queries x keys", tuple(self_scores.shape[2:]))
print("cross-attention: queries x keys", tuple(cross_scores.shape[2:]))
assert written.shape == target.shape
assert cross_scores.shape == (1, num_heads, length, 7)  # 5 words written look at 7 words read
assert (self_scores.numpy()[0, :, 0, 1:] == 0).all()  # the first word does not see the future

# %% [markdown]
# ## The sizes of the paper
#
# | | base |
# | --- | --- |
# | $d_{model}$ | 512 |
# | layers | 6 + 6 |
# | heads | 8, of 64 |
# | $d_{ff}$ | 2,048 |
#
# Where are the weights? In one encoder layer, two thirds are in the feed-forward network.

# %%
base = kt.EncoderLayer(8, 2048)
base.build((None, None, 512))
counts = {"attention": base.self_attention.count_params(), "feed-forward": base.feed_forward.count_params()}
print({name: f"{count:,}" for name, count in counts.items()}, f"{base.count_params():,}")
assert counts["attention"] == 4 * (512 * 512 + 512)
assert counts["feed-forward"] == 512 * 2048 + 2048 + 2048 * 512 + 512

# %% [markdown]
# ## Exercise
#
# ### Five minutes
#
# 1. The last number printed above counts all weights of the encoder layer of `base`. It is larger than attention and
#    feed-forward network together. By how much? What else does it count?
# 2. How many weights does a decoder layer have? Compute first, then check with the library.
# 3. Table 3 of the paper says that `base` has 65 million weights. It has 6 + 6 layers and one matrix of 37,000 tokens,
#    which embeds the source and the target and also serves for the output. How many do you count?

# %% tags=["hide-cell"]
# 1. It also counts two normalisations. Each has 512 numbers γ and 512 numbers β, so they make 2,048.
norm = 2 * 512
encoder_layer = counts["attention"] + counts["feed-forward"] + 2 * norm
# 2. A decoder layer has one more attention and one more normalisation: 4,204,032 weights.
decoder_layer = 2 * counts["attention"] + counts["feed-forward"] + 3 * norm
other = kt.DecoderLayer(8, 2048)
other.build((None, None, 512), (None, None, 512))
assert base.count_params() == encoder_layer and other.count_params() == decoder_layer
print(f"{encoder_layer:,} {decoder_layer:,}")
# 3. The text below explains the count.
embedding = 37_000 * 512  # one matrix for both embeddings and the output
total = 6 * encoder_layer + 6 * decoder_layer + embedding
print(f"{total:,}")
assert 62e6 < total < 65e6
small = kt.Transformer(30, num_layers=2, d_model=512, num_heads=8, d_ff=2048)
assert small.count_params() == 2 * encoder_layer + 2 * decoder_layer + 30 * 512

# %% [markdown]
# The count is 63 million, not 65. Chapter 16 looks for the reason. Two things are worth remembering. Nearly a third of
# the weights are in the one embedding matrix. And the number of words in a sentence or of heads changes nothing: all
# positions use the same matrices, and the heads only share their columns.

# %% [markdown]
# ### An hour
#
# Write `encoder_layer(x, weights, num_heads)`: a whole post-norm layer for one sentence `(length, d_model)`, with
# ReLU, with biases, without dropout. `weights` is a dictionary. Its keys are `self_attention/query/kernel`,
# `self_attention/query/bias`, the same for `key`, `value` and `attention_output`, then `feed_forward/inner/kernel`
# and `bias`, `feed_forward/outer/kernel` and `bias`, and `self_attention/norm/gamma`, `self_attention/norm/beta`,
# `feed_forward/norm/gamma`, `feed_forward/norm/beta`. The normalisation adds $10^{-6}$ to the variance.
#
# Write it in a file `answer.py`, with NumPy alone. `python course/check.py 9 answer.py` says which of its properties
# hold. No solution is published.
#
# ### A project
#
# How deep can a model be? Train the small translator of chapter 16 with 2, 6, 12 and 24 layers, post-norm and
# pre-norm, with and without a warm-up. Draw the loss after 200 steps, and the size of the gradient by layer at the
# first step.

# %% [markdown]
# ## What to read next
#
# - Vaswani et al., 2017, ["Attention Is All You Need"](https://arxiv.org/abs/1706.03762), sections 3.1 and 3.3, figure
#   1
# - Ba et al., 2016, ["Layer Normalization"](https://arxiv.org/abs/1607.06450)
# - Xiong et al., 2020, ["On Layer Normalization in the Transformer Architecture"](https://arxiv.org/abs/2002.04745):
#   post-norm and pre-norm
# - The next chapter: **10. One sentence, step by step**
