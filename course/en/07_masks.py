# %% [markdown]
# # 7. Masks
#
# After this chapter you know the two masks of the Transformer: one hides the padding of a batch, the other one hides
# the future from the decoder. You know where the $-\infty$ goes, and you can test that a mask does what it says.
#
# **Before:** chapters 4 and 5 (self-attention by hand, scaled dot-product).

# %% [markdown]
# ## Shifted right
#
# A decoder writes one word after another. It starts from a mark, `<SOS>` (start of sequence), and each word that it has
# written becomes its next input. At the end it writes `<EOS>` (end of sequence). In training we know the whole target,
# so we can show it all at once. The input is the target, *shifted right* by one place. At each place the model must
# guess the next word. Even where it guesses wrong, the next input is the right word. This way of training is called
# *teacher forcing*.
#
# | input | `<SOS>` | I | am | a | student |
# | --- | --- | --- | --- | --- | --- |
# | **answer** | I | am | a | student | `<EOS>` |
#
# There is a problem. Self-attention lets each place see all others. At the place of "I" the model could look one place
# to the right and read the answer, "am". It would learn to copy, and it could not write: when it writes there is
# nothing on the right. So every place must see only itself and what comes before it. The mask that does this is called
# the *look-ahead mask* or the causal mask.

# %%
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

import keras_transformer as kt

keras.utils.set_random_seed(7)
random = np.random.default_rng(7)

# %% [markdown]
# ## Where does the −∞ go?
#
# Here is a table of scores for five tokens. Row: the token that asks. Column: the token that is read. For the row of
# "I", the scores for "am", "a" and "student" must not count.
#
# Setting them to 0 does not help: $e^0 = 1$, so a score of 0 still gets a share. The share itself must become 0, and
# the other shares must still sum to 1. So the mask works *before* the softmax: it sets the score to $-\infty$, and
# $e^{-\infty} = 0$. The queries, the keys, the values and the positions (chapter 8) stay as they are.

# %%
tokens = ["<SOS>", "I", "am", "a", "student"]
scores = np.array(
    [
        [7, 2, 2, 2, 2],
        [1, 7, 3, 2, 1],
        [1, 4, 8, 4, 3],
        [1, 2, 3, 6, 2],
        [1, 5, 4, 1, 9],
    ],
    dtype="float32",
)


def softmax(scores):
    """Turns each row of scores into shares that sum to 1."""
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


may_see = np.tril(np.ones((5, 5), dtype=bool))  # True on the diagonal and below it
masked = np.where(may_see, scores, -np.inf)
weights = softmax(masked)
print(masked)
print(weights.round(3))

assert np.isneginf(masked[np.triu_indices(5, 1)]).all()  # above the diagonal
assert (weights[~may_see] == 0).all()
np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-6)
np.testing.assert_array_equal(weights[0], [1, 0, 0, 0, 0])  # the first token sees itself alone

wrong = softmax(np.where(may_see, scores, 0))  # a 0 instead of −∞
print("with 0, row of <SOS>:", wrong[0].round(4))
assert (wrong[0, 1:] > 0).all()

# %% [markdown]
# The picture shows the same table: a score in each open cell, −∞ where the mask hides it. Look at the triangle: the
# first row has one open cell, the last row has all five.

# %%
title = "look-ahead mask"
mask = kt.masks.look_ahead_mask(5)
np.testing.assert_array_equal(mask[0, 0], may_see)
axis_names = {"xlabel": "key: attended to", "ylabel": "query: attends"}
kt.plots.masks({title: mask}, tokens, scores=scores, **axis_names)

# %% [markdown]
# ## The padding mask
#
# Sentences of a batch have different lengths. The short ones are filled up with a token that means nothing: padding,
# here id 0. No token may attend to it. This mask is the same for every row of the table, so it hides whole *columns*:
# it belongs to the **keys**.
#
# | sentence | ids |
# | --- | --- |
# | I am a student | 5 6 7 8 |
# | I am | 5 6 0 0 |

# %%
ids = np.array([[5, 6, 7, 8], [5, 6, 0, 0]])
padding = kt.masks.padding_mask(ids)
print("shape (batch, heads, queries, keys):", tuple(padding.shape))
print(padding.numpy()[:, 0, 0])

both = kt.masks.combine(padding, kt.masks.look_ahead_mask(4))  # a cell is open where both are True
names = "padding mask, second sentence", "both masks"
tables = {names[0]: np.broadcast_to(padding[1], (1, 4, 4)), names[1]: both[1]}
kt.plots.masks(tables, ["I", "am", "0", "0"], **axis_names)

# %% [markdown]
# ![A table of scores with two masks, and the weights of one row](../../docs/images/motion_masks.svg)
#
# On the site you can switch both masks on and off, and choose a row. Hidden cells have −∞, and the softmax of the row
# makes a 0 of it.

# %% [markdown]
# Which mask goes where? *Cross-attention* is attention as in chapter 2, in which the decoder asks the source (chapter
# 9).
#
# | attention | padding mask | look-ahead mask |
# | --- | --- | --- |
# | encoder, self-attention | of the source | no |
# | decoder, self-attention | of the target, if it is padded on the left | yes |
# | decoder, cross-attention | of the source | no: the whole source may be read |
#
# When does the self-attention of a decoder need both masks? If the padding stands on the right, as here, the look-ahead
# mask alone is enough: all padding comes after the last word, so no word sees it. The outputs at the places of the
# padding are useless, but they do not count in the loss (chapter 12a). If padding stands *before* words, the padding
# mask is needed, too. Prompts, which a model continues (chapter 14), are often padded on the left. If several sentences
# are packed into one row, another mask must keep them from seeing each other.
#
# ## A test that cannot be fooled
#
# A wrong mask gives numbers of the right shape, so you do not see the fault. To find it, change a token. *If the token
# is hidden, nothing may change. If it may be seen, the output must change.* We try this on the library's encoder layer
# and decoder layer. Chapter 9 builds them. For now it is enough that both do self-attention, and that only the decoder
# layer has the look-ahead mask. A model is `causal` if no output depends on a later token.

# %%
x = random.normal(size=(1, 5, 16)).astype("float32")
changed = x.copy()
changed[0, 3] += 1.0  # the fourth token is another one

encoder = kt.EncoderLayer(num_heads=2, d_ff=32)
decoder = kt.DecoderLayer(num_heads=2, d_ff=32)
for name, layer in (("encoder", encoder), ("decoder", decoder)):
    moved = np.abs(layer(x) - layer(changed)).max(axis=(0, 2))
    print(name, moved.round(4))
encoder_moved = np.abs(encoder(x) - encoder(changed)).max(axis=(0, 2))
decoder_moved = np.abs(decoder(x) - decoder(changed)).max(axis=(0, 2))
assert (encoder_moved > 1e-4).all()  # each place sees the change
assert (decoder_moved[:3] < 1e-6).all() and (decoder_moved[3:] > 1e-4).all()  # no place before it does

real = np.array([[True, True, True, False, False]])
hidden = np.abs(encoder(x, padding_mask=real) - encoder(changed, padding_mask=real)).max(axis=(0, 2))
assert (hidden[:3] < 1e-6).all()  # a padded token reaches no real one

# %% [markdown]
# ## Exercise
#
# ### Five minutes
#
# A mask can also hide what is too far away: "restricted self-attention" (section 4 of the paper). Each token may see
# only the tokens less than 2 places away, and, as in a decoder, none in the future.
#
# 1. How many cells of a table for 5 tokens are open?
# 2. Build the mask from functions of `kt.masks`, and compute the shares of the last row of our scores.

# %% tags=["hide-cell"]
near = kt.masks.combine(kt.masks.look_ahead_mask(5), kt.masks.local_mask(5, window=2))[0, 0].numpy()
assert near.sum() == 9  # 1. the diagonal, 5, and the cells just below it, 4
# 2. In the last row the scores 1 and 9 are left. They differ by 8, so the shares differ by a factor of e^8.
last = softmax(np.where(near, scores, -np.inf))[-1]
np.testing.assert_allclose(last, [0, 0, 0, 1 / (1 + np.exp(8)), 1 / (1 + np.exp(-8))], rtol=1e-5)
print(near.astype(int), last.round(4), sep="\n")

# %% [markdown]
# ### An hour
#
# Several dialogues share a row, to waste no room. Write `packed_mask(numbers, prompts)`. `numbers` is
# `(batch, length)`: the number of the dialogue that a token belongs to, and 0 for padding. `prompts` is True for the
# tokens of a prompt. Return a `bool` table `(batch, length, length)`, True where a query may see a key. A token sees
# its own dialogue up to itself, and the tokens of a prompt see each other in both directions.
#
# Write it in a file `answer.py`, with NumPy alone. `python course/check.py 7 answer.py` says which of its properties
# hold. No solution is published.
#
# ### A project
#
# Write a program that finds out which mask a layer uses, without reading its code. It may only call the layer: it
# changes one token at a time, and sees which outputs change. Test it with every layer of this library that takes a
# mask, and draw the tables that it finds.

# %% [markdown]
# ## What to read next
#
# - Vaswani et al., 2017, ["Attention Is All You Need"](https://arxiv.org/abs/1706.03762), section 3.2.3: the three
#   uses of attention, and the $-\infty$
# - How Keras passes masks on: [its guide](https://keras.io/guides/understanding_masking_and_padding/). How this library
#   does it: the page "Masks" of its documents
# - The next chapter: **8. Positions**
