# %% [markdown]
# # 15. An open question: can attention explain?
#
# After this chapter you know both sides of a debate of 2019, and you can repeat its main experiments. You compare
# attention weights with two other measures of importance, you shuffle the weights, and you train a model without
# them. The chapter ends with a plain answer.
#
# **Before:** chapter 13 (reading attention).

# %% [markdown]
# ## The question
#
# A bank's model refuses a loan. Why? It is tempting to print the attention weights and to say: because of these
# words. But is that true?
#
# - Jain and Wallace, 2019, "Attention is not Explanation", say no. An explanation should agree with other
#   measures of importance, and other weights should lead to another answer. In their models both often fail.
# - Wiegreffe and Pinter, 2019, "Attention is not not Explanation", answer that this is too quick. First ask whether the
#   model needs its attention at all. And a second possible explanation does not make the first one wrong.
#
# We repeat their experiments. For that we need a model, and a task whose truth we know.

# %% [markdown]
# ## Reviews that a program writes
#
# A review has three clauses, such as "the plot was not good". An adjective is good or bad, and *not* reverses it. A
# review is positive if at least two clauses are positive. So we know which words *decide*: the adjectives and *not*.
# The nouns say nothing.

# %%
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import random

import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.fonts import font_families

GOOD = ("good", "great", "lovely", "clever")
BAD = ("bad", "dull", "awful", "silly")
NOUNS = ("plot", "music", "cast", "ending", "script", "camera", "story", "scenery")


def review(chooser):
    """Writes a review; returns its words and 1.0 if it is positive, else 0.0."""
    words, positive = [], 0
    for place, noun in enumerate(chooser.sample(NOUNS, 3)):
        good, negated = chooser.random() < 0.5, chooser.random() < 0.3
        words += [chooser.choice(("and", "but", "while"))] * (place > 0) + ["the", noun, "was"]
        words += ["not"] * negated + [chooser.choice(GOOD if good else BAD)]
        positive += good != negated
    return words, float(positive > 1)


chooser = random.Random(15)
reviews = [review(chooser) for _ in range(3300)]
vocabulary = ["[PAD]", "[UNK]", *sorted({word for words, _ in reviews for word in words})]
number = {word: i for i, word in enumerate(vocabulary)}
length = max(len(words) for words, _ in reviews)
ids = np.array([[number[w] for w in words] + [0] * (length - len(words)) for words, _ in reviews], "int32")
labels = np.array([label for _, label in reviews], "float32")
test, test_labels, real = ids[3000:], labels[3000:], ids[3000:] != 0
print(" ".join(reviews[0][0]), "->", reviews[0][1])

# %% [markdown]
# ## A classifier with one attention to read
#
# The models of the debate have an encoder, and above it one attention that reduces all states to one vector. We
# build the same: the library's embedding, positions and one encoder layer, then
#
# $$\alpha = \text{softmax}(s_1, \ldots, s_n), \qquad z = w^\top \sum_j \alpha_j h_j + b$$
#
# where the score $s_j$ comes from a small network that reads the state $h_j$. $w$ and $b$ are the weights of the last
# dense layer. $z$ is the logit: positive means "a good review". We write the steps as methods, because later we put
# other weights $\alpha$ into `answer`. With `uniform=True` all scores are 0, so all words get the same weight.


# %%
class Reader(keras.Model):
    """An encoder, one attention over its states, and one logit."""

    def __init__(self, uniform=False):
        super().__init__()
        self.uniform = uniform
        self.embedding = kt.layers.TokenEmbedding(len(vocabulary), 32)
        self.positions = kt.layers.PositionalEncoding()
        self.encoder = kt.layers.Encoder(1, num_heads=2, d_ff=64, dropout=0.0, normalize_first=True)
        self.scorer = keras.Sequential([keras.layers.Dense(32, "tanh"), keras.layers.Dense(1)])
        self.head = keras.layers.Dense(1)

    def states(self, embedded, mask):
        """The encoder's states; `mask` is True where a word may be seen."""
        return self.encoder(self.positions(embedded), padding_mask=mask)

    def weights_of(self, states, mask):
        """The attention weights, `(batch, length)`."""
        scores = self.scorer(states)[..., 0] * (0.0 if self.uniform else 1.0)
        return keras.ops.softmax(keras.ops.where(mask, scores, -1e30))

    def answer(self, states, weights):
        """The logit of the weighted mean."""
        # b: reviews, l: words, d: the numbers of a state. It sums weight times state over the words.
        return self.head(keras.ops.einsum("bl,bld->bd", weights, states))[:, 0]

    def logits(self, embedded, mask):
        """All steps from the embeddings on."""
        states = self.states(embedded, mask)
        return self.answer(states, self.weights_of(states, mask))

    def call(self, ids):
        return self.logits(self.embedding(ids), ids != 0)


def trained(seed, uniform=False):
    """Trains a model from this seed, and prints its share of right answers on the test."""
    keras.utils.set_random_seed(seed)
    model = Reader(uniform)
    model.compile(keras.optimizers.Adam(2.5e-3), keras.losses.BinaryCrossentropy(from_logits=True))
    model.fit(ids[:3000], labels[:3000], batch_size=40, epochs=10, verbose=0)
    right = np.mean((np.array(model(test)) > 0) == (test_labels > 0))
    print(f"seed {seed}, uniform: {uniform}. Right: {right:.0%}")
    assert right > 0.75
    return model


model = trained(seed=1)

# %% [markdown]
# ## Three measures of importance
#
# For each word of a review we compute:
#
# 1. **Attention**: its weight $\alpha_j$.
# 2. **Leave-one-out**: hide the word, and see how far the logit moves. This is an experiment on the model. It
#    says what *happens* without the word.
# 3. **Gradient × input**: $|\nabla_{x_j} z \cdot x_j|$ for the embedding $x_j$. From its slope it estimates how far the
#    logit would move if the embedding shrank to zero.


# %%
def attention(model):
    """The weights of the test's words, `(reviews, length)`."""
    states = model.states(model.embedding(test), real)
    return np.array(model.weights_of(states, real))


def leave_one_out(model):
    """How far the logit moves if a word is hidden."""
    embedded = model.embedding(test)
    whole = np.array(model.logits(embedded, real))
    places = np.arange(length)
    return (
        np.stack([abs(whole - np.array(model.logits(embedded, real & (places != i)))) for i in places], 1)
        * real
    )


def gradient_times_input(model):
    """The slope of the logit along each embedding."""
    embedded = tf.convert_to_tensor(model.embedding(test))
    with tf.GradientTape() as tape:
        tape.watch(embedded)
        total = tf.reduce_sum(model.logits(embedded, real))
    return np.abs(np.sum(tape.gradient(total, embedded) * embedded, -1)) * real


measures = {
    "attention": attention(model),
    "leave-one-out": leave_one_out(model),
    "gradient × input": gradient_times_input(model),
}
shown = int(np.argmax((test == number["not"]).sum(-1)))  # the review with the most "not"
words = [vocabulary[i] for i in test[shown] if i]

# %% tags=["hide-input"]
plt.rcParams["font.family"] = font_families(*measures)
colours = ("#3a6ea5", "#d1603d", "#2a9d8f")
figure, panels = plt.subplots(3, 1, figsize=(9, 5), sharex=True, layout="constrained")
for axes, (name, values), colour in zip(panels, measures.items(), colours, strict=True):
    row = values[shown, : len(words)]
    axes.bar(range(len(words)), row / row.sum(), color=colour)
    axes.set(title=name, ylabel="share", ylim=(0, 1))
panels[-1].set_xticks(range(len(words)), words, rotation=60)
plt.show()

# %% [markdown]
# **What to look at.** Compare the three panels word by word. Do they name the same words, in the same proportion?
# Attention often gives nearly everything to one or two words, while leaving words out shows that more of them matter.
# In other reviews attention falls on a word that decides nothing, such as *was* or *and*. The encoder has already
# mixed the words, and the state above *and* can hold what *awful* said (chapter 13).

# %% [markdown]
# ## Do they agree?
#
# We compare orders, not numbers: sort the words by importance, once by each measure. *Kendall's* $\tau$ counts
# pairs of words: +1 for a pair in the same order, −1 for a pair in opposite order, and takes the mean. So
# $\tau = 1$ means the same order, 0 no connection, −1 the opposite. It is the measure of Jain and Wallace.


# %%
def kendall(first, second):
    """Kendall's rank correlation of two rows."""
    i, j = np.triu_indices(len(first), 1)
    return np.mean(np.sign(first[i] - first[j]) * np.sign(second[i] - second[j]))


assert kendall(np.array([1, 2, 3]), np.array([10, 20, 30])) == 1
assert kendall(np.array([1, 2, 3]), np.array([30, 20, 10])) == -1
np.testing.assert_allclose(
    kendall(np.array([1, 2, 3]), np.array([2, 1, 3])), 1 / 3
)  # one of three pairs is turned round


def agreement(first, second):
    """Kendall's correlation for each review."""
    return np.array([kendall(a[seen], b[seen]) for a, b, seen in zip(first, second, real, strict=True)])


(a, by_attention), (o, by_leaving), (g, by_gradient) = measures.items()
agreements = {
    f"{a}, {o}": agreement(by_attention, by_leaving),
    f"{a}, {g}": agreement(by_attention, by_gradient),
    f"{o}, {g}": agreement(by_leaving, by_gradient),
}
for name, values in agreements.items():
    print(f"{name}: {values.mean():.2f}")
assert agreements[f"{a}, {o}"].mean() < 0.8

# %% tags=["hide-input"]
figure, axes = plt.subplots(figsize=(8, 3.8), layout="constrained")
for (name, values), colour in zip(agreements.items(), colours, strict=True):
    axes.hist(values, bins=np.linspace(-1, 1, 33), histtype="step", linewidth=2, color=colour, label=name)
axes.axvline(0, color="#909090", linestyle=":")
axes.set(xlabel="Kendall's τ of a review", ylabel="reviews")
axes.legend(loc="upper left")
plt.show()

# %% [markdown]
# **What to look at.** Look how far each outline lies to the right. If attention were the explanation, its outlines
# would stand at 1. They lie between 0 and 1: attention has something to do with importance, and it is not the same
# thing. The two other measures agree with each other somewhat better, as Jain and Wallace found on real reviews. They
# are not perfect either.

# %% [markdown]
# ## Shuffle the weights
#
# A second test of Jain and Wallace. If the weights are the reason, then other weights must give another answer.
# We keep the states, shuffle the weights of the words twenty times, and look at how far the probability moves.


# %%
def probability(logits):
    """The probability of a good review."""
    return 1 / (1 + np.exp(-np.array(logits)))


shuffler = np.random.default_rng(0)
states = model.states(model.embedding(test), real)
before = probability(model.answer(states, by_attention))
moves = []
for _ in range(20):
    shuffled = by_attention.copy()
    for row, seen in zip(shuffled, real, strict=True):
        row[seen] = shuffler.permutation(row[seen])
    moves.append(abs(probability(model.answer(states, shuffled)) - before))
moves = np.median(moves, axis=0)
print(f"moved by less than 0.1: {np.mean(moves < 0.1):.0%}")
print(f"moved by more than 0.5: {np.mean(moves > 0.5):.0%}")
assert 0 < moves.max() <= 1

# %% [markdown]
# For some reviews the weights matter much, for others hardly at all: there every state says the same, wherever
# one looks. The same picture of weights can be decisive in one review and without meaning in the next.

# %% [markdown]
# ## Does the model need its attention?
#
# Wiegreffe and Pinter ask two questions first.
#
# 1. Train the same model with *uniform* weights. If it is as good, the task does not need this attention, and
#    nobody should look for an explanation there.
# 2. Train the same model from another seed. If it gives the same answers with other weights, then a difference between
#    weights proves little.

# %%
other = trained(seed=2)
uniform = trained(seed=1, uniform=True)
same_answer = np.mean((np.array(model(test)) > 0) == (np.array(other(test)) > 0))
print(f"Two seeds: same answer {same_answer:.0%}")
print(f"Kendall's τ of their attention: {agreement(by_attention, attention(other)).mean():.2f}")
assert agreement(by_attention, attention(other)).mean() < 0.8

# %% [markdown]
# The uniform model is as good. So the encoder below does the work, and the attention on top is only one of many ways to
# collect its result. And two seeds give nearly the same answers with different weights. In this model the weights on
# top are rather a habit of one training, and they alone do not give the reason of the answer.
#
# That does not hold for every model. In chapter 13 the attention was the only way for words to meet, and the
# model could not do without it. There weights and truth agreed.

# %% [markdown]
# ## A plain answer
#
# - **Attention weights say where a layer reads from. They do not say why the model answers as it does.** Between
#   the two lie the values, the other heads, the other layers and the residual connections.
# - They are good for a *guess*. Test the guess on the model: hide the word, change it, and look at the answer.
# - The fewer ways around an attention there are, the more its weights mean. So always ask: could the model do
#   without it?
# - Other measures have faults too. Leave-one-out misses a word if another word says the same, and gradients miss what
#   is saturated: what is at its limit already, so that a small change moves nothing. If several measures agree, you may
#   begin to trust them.
# - For a decision about people, such as a loan, no picture of weights is enough.

# %% [markdown]
# ## Exercise
#
# ### Five minutes
#
# In our task we know which words decide: the adjectives and *not*. For each review let $k$ be the number of such
# words. How many of the $k$ most important words are among them, by each of the three measures? What would chance
# give? Does the winner agree with what this chapter says?

# %% tags=["hide-cell"]
deciding = np.isin(test, [number[word] for word in ("not", *GOOD, *BAD)])
by_chance = (deciding.sum(-1) / real.sum(-1)).mean()
for name, values in measures.items():
    found = [
        chosen[np.argsort(-row)[: chosen.sum()]].mean() for row, chosen in zip(values, deciding, strict=True)
    ]
    print(f"{name}: {np.mean(found):.2f}")
    assert np.mean(found) > by_chance
print(f"chance: {by_chance:.2f}")
# It agrees. All three measures do far better than chance. In our run leave-one-out was first with 0.85, then came
# attention with 0.78, gradient × input with 0.73, and chance with 0.26. Leave-one-out is an experiment on the model,
# so it is no surprise that it leads. That attention comes before gradient × input means that it is a fair start for a
# guess. It does not make attention an explanation. This task only asks whether the deciding words are among the top k.
# It does not ask whether the words are in the right order (Kendall's τ stayed below 0.4), nor whether the model needs
# these weights: the model with uniform weights solved the same task.

# %% [markdown]
# ### An hour
#
# Different weights can give the same output. Write `other_weights(values, weights)` for one query: `values` is
# `(length, d)` with `length` greater than $d + 1$, and `weights` is `(length,)`. Return other weights that are not
# negative, add up to 1 and give the same output, and at least one of which is 0. (Which directions of the weights
# change neither the sum nor the output?)
#
# Write it in a file `answer.py`, with NumPy alone. `python course/check.py 15 answer.py` says which of its properties
# hold. No solution is published.
#
# ### A project
#
# Take a text classifier of your own (chapter 14, or a checkpoint). Ask for ten texts which words people find
# decisive, before you look. Compare with attention, with gradient × input and with leave-one-out, and with a model
# that is trained with uniform weights. What would you show to somebody who was refused a loan by it?

# %% [markdown]
# ## What to read next
#
# - Jain and Wallace, 2019, ["Attention is not Explanation"](https://arxiv.org/abs/1902.10186)
# - Wiegreffe and Pinter, 2019, ["Attention is not not Explanation"](https://arxiv.org/abs/1908.04626)
# - Abnar and Zuidema, 2020, ["Quantifying Attention Flow in Transformers"](https://arxiv.org/abs/2005.00928):
#   weights followed through all layers
# - Documents of this library: *What matters to a model* (`kt.explain` computes leave-one-out, gradient × input
#   and attention rollout for translators and classifiers), *Attention viewer*
# - The next chapter: **16. The whole model on one page**
