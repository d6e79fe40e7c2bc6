# %% [markdown]
# # 2. Luong's dot-product attention
#
# After this chapter you can write the attention that recurrent translators used before the Transformer: four lines,
# and three of them are still in every Transformer. You also see a model find out by itself which word to look at.
#
# **Before:** chapter 1 (why attention), the dot product of two vectors, and $e^x$. The last part trains a small
# model, so you should have seen `keras.Input`, `compile` and `fit` of Keras.

# %% [markdown]
# ## Where does 0.8 come from?
#
# In chapter 1 the decoder took a mixture of states: for the word "I", the encoder's state $h_0$ (저는) counts 0.8, and
# $h_1$ and $h_2$ count 0.1 each. There we chose the shares. Now the model is to compute them itself, for each word that
# it writes.
#
# The attention of Luong, Pham and Manning (2015) compares two vectors. $s$ is the state of the decoder: it says what
# the model has written and what it is about to write. $h_0, h_1, h_2$ are the states of the encoder: they say what is
# in the source. Where the two fit, the model should look.
#
# We take states of three numbers, chosen so that they are easy to follow. Each $h$ has its own direction. Each $s$
# points towards the $h$ that it needs. In a real model recurrent networks compute both.

# %%
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import matplotlib.pyplot as plt
import numpy as np

import keras_transformer as kt
from keras_transformer.fonts import font_families

keras.utils.set_random_seed(2)
random = np.random.default_rng(2)

source = ["저는", "학생", "입니다"]
target = ["I", "am", "a", "student"]
h = np.array([[2.0, 0, 0], [0, 2.0, 0], [0, 0, 2.0]])  # states of the encoder, a row for each source word
s = np.array(
    [[1.04, 0, 0], [0, 0, 1.04], [0, 0.35, 0.35], [0, 1.04, 0]]
)  # states of the decoder, a row for each target word

# %% [markdown]
# ## Step 1: score
#
# The score is the dot product: $\mathrm{score}(s, h_j) = s^\top h_j$. It is large if the two vectors point in the same
# direction.

# %%
scores = s[0] @ h.T
print("scores for 'I':", scores)
np.testing.assert_allclose(scores, [np.log(8), 0, 0], atol=0.01)

# %% [markdown]
# ## Step 2: softmax
#
# Softmax turns the scores into shares: $e^{2.08} = 8$ and $e^0 = 1$, so the shares are $8/10$, $1/10$ and $1/10$.
# Papers call a share an *attention weight*, and all shares of one written word its *attention distribution*. (Chapter
# 3 says why it is softmax. The code first subtracts the largest score from all scores. The result is the same, and no
# $e^x$ gets too large.)


# %%
def softmax(scores):
    """Turns each row of scores into shares that sum to 1."""
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


weights = softmax(scores)
print("shares for 'I':", weights.round(2))
np.testing.assert_allclose(weights, [0.8, 0.1, 0.1], atol=0.005)

# %% [markdown]
# ## Step 3: context
#
# The *context* $a$ is the mixture of the encoder's states. If $w_j$ is the share of $h_j$, then $a = \sum_j w_j h_j$.

# %%
context = weights @ h
print("context for 'I':", context.round(2))
np.testing.assert_allclose(context, 0.8 * h[0] + 0.1 * h[1] + 0.1 * h[2], atol=0.01)

# %% [markdown]
# ## Step 4: join with the decoder's state
#
# Now there are two vectors: $a$ says what the source holds here, $s$ says what has been written so far. The decoder
# writes them one after the other, $[a; s]$, multiplies by a matrix $W_c$ that it learns, adds a bias $b_c$, and brings
# the result between −1 and 1:
#
# $$\tilde s = \tanh(W_c [a; s] + b_c)$$
#
# From $\tilde s$ the output layer computes the next word. (We write vectors as rows, so the matrix stands on the right
# in the code. It is random here, and $b_c$ is 0.)

# %%
w_c = random.normal(size=(6, 3)) / np.sqrt(6)  # from 3 + 3 numbers to 3
b_c = np.zeros(3)
s_tilde = np.tanh(np.concatenate([context, s[0]]) @ w_c + b_c)
print("s̃ for 'I':", s_tilde.round(3))

# %% [markdown]
# ## All words at once
#
# In training all target words are known, so all rows can go through at once. The word order changes between Korean and
# English: "am" looks at the last word 입니다, and "student" at the one in the middle. "a" has no word of its own in
# Korean, and looks at two.


# %%
def luong_attention(s, h, w_c, b_c):
    """Luong's attention for all states of the decoder."""
    weights = softmax(s @ h.T)
    context = weights @ h
    return np.tanh(np.concatenate([context, s], axis=-1) @ w_c + b_c), weights


outputs, alignment = luong_attention(s, h, w_c, b_c)
np.testing.assert_allclose(outputs[0], s_tilde)
for word, row in zip(target, alignment.round(2), strict=True):
    print(f"{word:8}", dict(zip(source, row.tolist(), strict=True)))

# %% [markdown]
# ## The same with the library
#
# `kt.layers.LuongAttention` is this layer. Like the paper of Luong et al., it has no $b_c$. Keras calls the shares
# *attention scores*: with `return_attention_scores=True` the layer returns them, too. So Keras's word means the
# numbers after the softmax. In this course a score is the number before it.

# %%
layer = kt.layers.LuongAttention()
# `[None]` adds an axis in front: a batch of one pair of sentences, (1, words, numbers).
queries, memory = s[None].astype("float32"), h[None].astype("float32")
layer.build(queries.shape, memory.shape)
layer.set_weights([w_c])
result, shares = layer(queries, memory, return_attention_scores=True)
np.testing.assert_allclose(result[0], outputs, atol=1e-5)
np.testing.assert_allclose(shares[0, 0], alignment, atol=1e-5)

# %% [markdown]
# ## The names of today
#
# In the words of the Transformer's paper, $s$ is the **query**. Each $h$ is **key** and **value** at the same time: a
# key when it is compared with $s$, a value when it is mixed. With these names, steps 1 to 3 are one call. `scale=1.0`
# says that the scores stay as they are (chapter 5).

# %%
# `[:, None]` adds an axis after the batch, for one head (chapter 6): (1, 1, words, numbers).
by_names, _ = kt.layers.dot_product_attention(queries[:, None], memory[:, None], memory[:, None], scale=1.0)
np.testing.assert_allclose(by_names[0, 0], alignment @ h, atol=1e-5)

# %% [markdown]
# ## Does a model find this by itself?
#
# We chose $s$ and $h$ by hand. In a model nobody says which word belongs to which. It only sees pairs of sentences,
# and the gradient does the rest. A small task shows it: the source is six random words, and the target is the same
# six words in reverse order. The first word that it writes is the last word of the source, and its last word is the
# first one, which the last state has half forgotten.
#
# The encoder and the decoder are LSTMs (Hochreiter and Schmidhuber, 1997). An LSTM is a recurrent network like that of
# chapter 1. It also learns what to keep of its state at each step and what to erase, so it forgets later. For us it is
# a layer: vectors of words go in, and a state for each word comes out.
#
# The decoder starts with the encoder's last state, and reads the word before the one that it should write. Before the
# first word stands id 1, which marks the beginning. The attention is the layer from above: its $s$ are the decoder's
# states, its $h$ the encoder's. We keep its shares in `learned`, to look at them later.

# %%
length, vocab_size, begin = 6, 12, 1
sources = random.integers(2, vocab_size, size=(4000, length))
targets = sources[:, ::-1]
shifted = np.concatenate([np.full((4000, 1), begin), targets[:, :-1]], axis=1)  # the word before

read, written = keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="int32")
embed = keras.layers.Embedding(vocab_size, 32)  # ids to vectors
# `LSTMStack(1, 48)` is one LSTM whose state has 48 numbers. It returns the states of all words, and the last one:
# with this one the decoder starts.
states, last = kt.layers.LSTMStack(1, 48)(embed(read))
decoder_states, _ = kt.layers.LSTMStack(1, 48)(embed(written), last)
attended, learned = kt.layers.LuongAttention()(decoder_states, states, return_attention_scores=True)
logits = keras.layers.Dense(vocab_size)(attended)  # a number for each word that could come next

model = keras.Model([read, written], logits)
model.compile(
    keras.optimizers.Adam(5e-3),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
history = model.fit([sources, shifted], targets, batch_size=64, epochs=3, verbose=0)
for epoch, accuracy in enumerate(history.history["accuracy"], start=1):
    print(f"epoch {epoch}: {accuracy:.1%} of the words are right")
assert history.history["accuracy"][-1] > 0.9

# %% [markdown]
# Now the shares. A second model with the same layers returns them instead of the words. It needs no training: its
# layers are trained already.

# %%
reader = keras.Model([read, written], learned)
mean_alignment = reader.predict([sources[:200], shifted[:200]], verbose=0)[:, 0].mean(axis=0)
assert (mean_alignment.argmax(axis=-1) == np.arange(length)[::-1]).all()


def draw(axes, table, rows, columns, title, labels):
    """Draws shares as a table, a row for each word that is written."""
    axes.imshow(table, cmap="Blues", vmin=0, vmax=1)
    for (row, column), share in np.ndenumerate(table):
        axes.text(
            column, row, f"{share:.2f}", ha="center", va="center", color="white" if share > 0.5 else "black"
        )
    axes.set(title=title, xlabel=labels[0], ylabel=labels[1])
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)


titles = ["Chosen by hand: translation", "Learned: words in reverse order"]
labels = ["source word (key, value)", "target word (query)", "place in the source", "place in the target"]
places = [str(place) for place in range(1, length + 1)]

# %% tags=["hide-input"]
plt.rcParams["font.family"] = font_families(*source, *target, *titles, *labels)
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.4), layout="constrained")
draw(left, alignment, target, source, titles[0], labels[:2])
draw(right, mean_alignment, places, places, titles[1], labels[2:])
plt.show()

# %% [markdown]
# **What to look at.** Each row is a word that is written, and its shares sum to 1. On the left the dark cells do not
# follow the diagonal: Korean puts the verb last. On the right is the mean over 200 sentences, learned in three passes
# over the data. The dark cells run from the upper right to the lower left: the first word that is written looks at the
# last word that was read. Nobody told the model. Such a picture is called an *alignment*.

# %% [markdown]
# ## What is still missing
#
# The alignment is good, but the states still come from LSTMs. They are computed one after another, in training too.
# If attention can fetch any word directly, are the LSTMs needed at all? The answer of the Transformer is no. Then
# queries, keys and values must come from elsewhere. The next two chapters build that.

# %% [markdown]
# ## Exercise
#
# ### Five minutes
#
# A decoder has states of **four** numbers, and the encoder has states of three. A dot product of the two does not
# exist.
#
# 1. Find the smallest change to the score that works. (Hint: a matrix $W_a$ between $s$ and $h$.) Which shape must it
#    have?
# 2. Choose $W_a$ so that the fourth number is ignored, and check that the alignment is the one from before.
# 3. Come back to this one after chapter 4: where is $W_a$ in the Transformer?

# %% tags=["hide-cell"]
# 1. With a matrix between them the score is s^T W_a h. s has 4 numbers and h has 3, so W_a is 4 by 3.
# 2. A row of zeros for the fourth number ignores it.
wide = np.concatenate([s, random.normal(size=(4, 1))], axis=1)  # (4, 4): a decoder with one more number
w_a = np.eye(4, 3)  # takes the first three numbers
general = softmax(wide @ w_a @ h.T)
np.testing.assert_allclose(general.sum(axis=-1), 1)
np.testing.assert_allclose(general, alignment)
# 3. The Transformer has two matrices in its place (chapter 4): W_a is W^Q times the transpose of W^K.
np.testing.assert_allclose((wide @ w_a) @ h.T, wide @ (h @ w_a.T).T)
print("alignment:", general.shape)

# %% [markdown]
# ### An hour
#
# Luong also describes *local* attention, which looks at a window only. Write `local_attention(s, h, places, width)`.
# `s` and `h` are the states of decoder and encoder, and `places` holds a place in the source for each row of `s`.
# Only the states at most `width` places away take part in the softmax. Each share is then multiplied by
# $e^{-d^2 / (2 \sigma^2)}$, where $d$ is the distance from the place and $\sigma$ is half of `width`. Return the
# contexts and the weights.
#
# Write it in a file `answer.py`, with NumPy alone. `python course/check.py 2 answer.py` says which of its properties
# hold. No solution is published.
#
# ### A project
#
# Train the reverser of this chapter with 6, 12, 24 and 48 words, once with attention and once without it. Without it
# the decoder has the last state only. Measure the share of right words, and say at which length each of the two
# breaks down. Look at the alignments where they do.

# %% [markdown]
# ## What to read next
#
# - Luong, Pham, Manning, 2015, ["Effective Approaches to Attention-based Neural Machine
#   Translation"](https://arxiv.org/abs/1508.04025), section 3: the four lines, and other scores
# - Bahdanau et al., 2015, ["Neural Machine Translation by Jointly Learning to Align and
#   Translate"](https://arxiv.org/abs/1409.0473): the first attention, with an alignment in figure 3
# - Hochreiter and Schmidhuber, 1997, ["Long Short-Term Memory"](https://doi.org/10.1162/neco.1997.9.8.1735): the LSTM
# - The documents of this library: the reference of `LuongAttention` and `RecurrentSeq2Seq`
# - Next chapter: **3. Query, key, value: a soft look-up**
