# %% [markdown]
# # 3. Query, key, value: a soft look-up
#
# After this chapter you can explain attention as a look-up in a table. You know what a query, a key and a value are,
# why the answer is a mixture, and what softmax does that simple division cannot. You build such a table for
# temperatures, and ask it for times that it does not have.
#
# **Before:** chapter 2 (Luong's attention). You need to know Python's `dict` and the dot product of two vectors.

# %% [markdown]
# ## A dictionary is all or nothing
#
# A `dict` in Python maps keys to values. You ask with a query. If the query equals a key, you get its value. If it
# does not, you get an error, however close the nearest key is.

# %%
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import matplotlib.pyplot as plt
import numpy as np

import keras_transformer as kt
from keras_transformer.fonts import font_families

keras.utils.set_random_seed(3)

temperatures = {3: 11.0, 9: 15.0, 15: 22.0, 21: 16.0}  # hour of the day: degrees Celsius
print("at 9:", temperatures[9])
try:
    temperatures[10]
except KeyError as error:
    print("at 10: KeyError", error)

# %% [markdown]
# At 10 o'clock it is surely a little warmer than at 9. A person would answer: mostly as at 9, and a little as at 15. A
# *soft* look-up does this:
#
# 1. Compare the query with **every** key. The result is a score for each key.
# 2. Turn the scores into shares that sum to 1.
# 3. Mix **all** values, each times its share.
#
# This is attention. The rest of the chapter takes the steps one by one.

# %% [markdown]
# ## Step 1: compare
#
# Keys and queries become vectors, so that they can be compared by a dot product. An hour is a direction on a clock: a
# clock with 24 hours, whose hand has length 1. (23 o'clock and 1 o'clock are then close, as they should be.) Two hands
# that point the same way have the dot product 1, at a right angle 0, in opposite directions −1.


# %%
def hand(hour):
    """Returns the direction of an hour on a clock with 24 hours, `(..., 2)`."""
    angle = 2 * np.pi * np.asarray(hour) / 24
    return np.stack([np.sin(angle), np.cos(angle)], axis=-1)


hours = np.array(list(temperatures))
keys = hand(hours)  # (4, 2)
values = np.array(list(temperatures.values()))[:, None]  # (4, 1)
similarity = hand(10) @ keys.T
print(dict(zip(hours.tolist(), similarity.round(2).tolist(), strict=True)))
assert similarity.argmax() == 1  # 9 o'clock is the nearest

# %% [markdown]
# ## Step 2: shares
#
# How do scores become shares? Take an easier example first. Three words got 75, 50 and 20 points. One could divide by
# the sum:

# %%
points = np.array([75.0, 50.0, 20.0])
print("divided by the sum:", (points / points.sum()).round(2))
np.testing.assert_allclose(points / points.sum(), [0.52, 0.34, 0.14], atol=0.005)

# %% [markdown]
# This works for points, but not for dot products. They can be negative, and then a share would be negative, too; or the
# sum could be 0. Softmax takes $e^{\text{score}}$ first. The results are positive for all scores:
#
# $$\mathrm{softmax}(z)_i = \frac{e^{z_i}}{\sum_j e^{z_j}}$$
#
# Only *differences* between scores count: if you add 100 to all of them, nothing changes. So the size of these
# differences decides how sharp the choice is. (That is why the function below may subtract the largest score first.
# Then no power gets too large.) We try the points as they are, and in smaller units.


# %%
def softmax(scores):
    """Turns each row of scores into shares that sum to 1."""
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


for unit in (1, 10, 100):
    print(f"points / {unit:3}:", softmax(points / unit).round(4))
assert softmax(points)[0] > 0.9999  # the winner takes all
np.testing.assert_allclose(softmax(points + 100), softmax(points))

# %% [markdown]
# ## Step 3: mix
#
# Suppose that softmax gave the shares 0.00005, 0.00098 and 0.99896 to three values. The mixture is almost exactly the
# third value. A soft look-up can be as sharp as a `dict`. The scores need only differ enough: here by about 3 and 7.
#
# (The shares are rounded to five digits, so they sum to 0.99999.)

# %%
shares = np.array([0.00005, 0.00098, 0.99896])
three_values = np.array([[1.0, 0.0], [0.0, 1.0], [5.0, 5.0]])
print("mixture:", shares @ three_values)
np.testing.assert_allclose(shares @ three_values, three_values[2], atol=0.01)

differences = np.diff(np.log(shares))
print("differences of the scores:", differences.round(2))
np.testing.assert_allclose(differences, [3, 7], atol=0.1)

# %% [markdown]
# ## All three steps
#
# `sharpness` multiplies the scores. A large one makes the look-up sharp, a small one makes it soft. (In chapter 5 it is
# $1 / \sqrt{d_k}$, where $d_k$ is the dimension of a key.)


# %%
def look_up(query, keys, values, sharpness):
    """Returns the mixture of values for each query, and the shares."""
    shares = softmax(sharpness * (query @ keys.T))
    return shares @ values, shares


for sharpness in (0, 2, 6, 1000):
    answer, shares = look_up(hand(10), keys, values, sharpness)
    print(f"sharpness {sharpness:4}: {answer[0]:5.2f} degrees, shares {shares.round(3)}")

at_nine, _ = look_up(hand(9), keys, values, 1000)
np.testing.assert_allclose(at_nine, temperatures[9])  # as sharp as a dict
mean, _ = look_up(hand(10), keys, values, 0)
np.testing.assert_allclose(mean, values.mean())  # a query that does not matter

# %% [markdown]
# Now we ask for every time of the day, and draw the answers.

# %%
day = np.linspace(0, 24, 289)
answers = {sharpness: look_up(hand(day), keys, values, sharpness) for sharpness in (1, 4, 1000)}
texts = [
    "hour that is asked (query)",
    "answer, °C",
    "share of each value",
    "The answers",
    "The shares, sharpness 4",
]
names = ["sharpness", "table", "value at"]

# %% tags=["hide-input"]
plt.rcParams["font.family"] = font_families(*texts, *names)
figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 3.8), layout="constrained")
for (sharpness, (answer, _)), colour in zip(answers.items(), ["#9bb8d3", "#3a6ea5", "#d1603d"], strict=True):
    left.plot(day, answer[:, 0], color=colour, label=f"{names[0]} {sharpness}")
left.plot(hours, values[:, 0], "o", color="black", label=names[1])
left.set(title=texts[3], xlabel=texts[0], ylabel=texts[1])
shares = answers[4][1]
right.stackplot(
    day,
    shares.T,
    labels=[f"{names[2]} {hour}:00" for hour in hours],
    colors=["#26466d", "#3a6ea5", "#d1603d", "#e9b872"],
)
right.set(title=texts[4], xlabel=texts[0], ylabel=texts[2], ylim=(0, 1))
for axes in (left, right):
    axes.set(xlim=(0, 24), xticks=range(0, 25, 3))
    axes.legend(fontsize=8, loc="upper left")
plt.show()

# %% [markdown]
# **What to look at.** On the left, the orange line is a very sharp look-up: it jumps from value to value. The blue line
# is smooth. The light line is so soft that it is drawn towards the mean of the day, 16 degrees, and misses the values
# at 3:00 and 15:00. No line leaves the range from 11 to 22 degrees: a mixture lies between its smallest and its largest
# part. On the right, each colour is the share of one table entry. At 9:00 most of the height belongs to the value at
# 9:00; at 12:00 the values at 9:00 and 15:00 share equally.

# %%
for answer, _ in answers.values():
    assert (answer >= values.min() - 1e-9).all() and (answer <= values.max() + 1e-9).all()
noon = look_up(hand(12), keys, values, 4)[1]
np.testing.assert_allclose(noon[1], noon[2])

# %% [markdown]
# The smooth line has one more property that a `dict` lacks: it has a slope everywhere. If the answer is wrong, calculus
# says in which direction to move the query, the keys and the values. That is why a network can *learn* a soft table.

# %% [markdown]
# ## The same with the library
#
# `kt.layers.dot_product_attention` is this look-up for many queries at once. `scale` is our sharpness. The first two
# axes of the arrays are a batch and heads (chapter 6); we have one of each.

# %%
questions = np.array([0.5, 6, 10, 17.25])
q, k, v = (array[None, None].astype("float32") for array in (hand(questions), keys, values))
mixed, weights = kt.layers.dot_product_attention(q, k, v, scale=4.0)
expected, expected_shares = look_up(hand(questions), keys, values, 4)
np.testing.assert_allclose(mixed[0, 0], expected, atol=1e-4)
np.testing.assert_allclose(weights[0, 0], expected_shares, atol=1e-5)
for hour, answer in zip(questions, mixed[0, 0, :, 0], strict=True):
    print(f"at {hour:5}: {float(answer):.1f} degrees")

# %% [markdown]
# ## Back to words
#
# | | in the table | in chapter 2 | in self-attention (chapter 4) |
# | --- | --- | --- | --- |
# | query | the hour you ask for | a state of the decoder | made from the token that asks |
# | key | an hour of the table | a state of the encoder | made from each token |
# | value | its temperature | the same state of the encoder | made from each token |
#
# The table shows why key and value are two things. An hour is good for finding, a temperature is good for answering.
# Chapter 2 used one vector for both. A *token* is a piece of a sentence, such as 저는 in chapter 1. The Transformer
# makes two vectors from each token, and learns how to make them.

# %% [markdown]
# ## Exercise
#
# ### Five minutes
#
# 1. The query is the vector $[0, 0]$. It points nowhere. What does the look-up answer, and why does the sharpness not
#    matter?
# 2. Add a fifth entry to the table: a *broken* thermometer at 9:00 that shows 99 degrees, with the same key as the
#    entry at 9:00. What does a very sharp look-up answer at 9:00? What would a `dict` do?

# %% tags=["hide-cell"]
# 1. The dot product of the zero vector with any key is 0. Times any sharpness it is still 0, so each share is 1/4,
#    and the answer is the mean of the four temperatures, 16 degrees.
for sharpness in (1, 1000):
    nowhere, shares = look_up(np.zeros(2), keys, values, sharpness)
    np.testing.assert_allclose(shares, 1 / 4)  # all scores are 0
    np.testing.assert_allclose(nowhere, values.mean())

# 2. The two entries at 9:00 have the same key, so they get the same score, and equal scores get equal shares.
#    Sharpness only enlarges differences between scores, so it can never separate the two. Each gets 0.5, and the
#    answer is the mean of 15 and 99, 57 degrees. Only different keys could separate them. A dict keeps one value for
#    each key: the later 99 replaces the 15.
more_keys, more_values = np.concatenate([keys, hand([9])]), np.concatenate([values, [[99.0]]])
answer, shares = look_up(hand(9), more_keys, more_values, 1000)
np.testing.assert_allclose(answer, (15 + 99) / 2)
print("shares:", shares.round(2), "answer:", answer)

# %% [markdown]
# ### An hour
#
# A look-up can learn what to ask. Write `find_query(keys, values, wanted)`. It returns the query whose look-up, with
# a sharpness of 1, answers `wanted` to within 0.01. Start with a query of zeros, derive the gradient of the squared
# error on paper, and follow it down. `wanted` is always a mixture of the values.
#
# Write it in a file `answer.py`, with NumPy alone. `python course/check.py 3 answer.py` says which of its properties
# hold. No solution is published.
#
# ### A project
#
# Take a year of temperatures of your town, one for each hour. Answer "how warm is it at 7:30 on a day in March?" by a
# soft look-up with keys for the hour and for the day. Find the best sharpness on one half of the data, and measure
# the error on the other half. Is it better than the mean of the month?

# %% [markdown]
# ## What to read next
#
# - Vaswani et al., 2017, ["Attention Is All You Need"](https://arxiv.org/abs/1706.03762), section 3.2: the definition
#   of attention by queries, keys and values
# - Graves et al., 2014, ["Neural Turing Machines"](https://arxiv.org/abs/1410.5401), section 3.3.1: a memory that is
#   addressed by content, with a sharpness
# - The documents of this library: the reference of `dot_product_attention`
# - Next chapter: **4. Self-attention by hand**
