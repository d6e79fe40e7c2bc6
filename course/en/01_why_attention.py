# %% [markdown]
# # 1. Why attention
#
# After this chapter you know which problem attention solves. You see a recurrent network forget the beginning of a
# sentence, you measure how much it forgets, and you repair it with a weighted mean. You also know why the Transformer
# dropped the recurrent network altogether.
#
# **Before:** Python with NumPy, and the product of a vector and a matrix.

# %% [markdown]
# ![The Transformer, with the part of this chapter in colour](../../docs/images/transformer_1.svg)
#
# The whole model of this course, which chapters 9 and 10 complete. You need not know the words in its boxes yet. In
# colour is the subject of this chapter: the attention with which the decoder, the part that writes the translation,
# looks at the source.

# %% [markdown]
# ## A translator that reads in order
#
# Take the Korean sentence 저는 학생입니다. It has three pieces: 저는 (I), 학생 (student) and 입니다 (am). The English
# translation is *I am a student*.
#
# Before 2017, most neural translators were **recurrent** networks. Such a network reads word by word. It has a
# **state**: a vector that holds what it has read so far. Each new state is made from the state before and the next
# word:
#
# $$h_t = \tanh(x_t W + h_{t-1} U)$$
#
# Words are counted from 0, as in Python: $x_t$ is the vector of word $t$, and $h_t$ is the state after reading it.
# The state after the first word is $h_0$; the state before it is 0. $W$ and $U$ are matrices that the model learns.
# $\tanh$ brings each number between −1 and
# 1. Here is such a network in NumPy. Words are random vectors, and the matrices are random, too. That is enough for
# what we want to see.

# %%
import matplotlib.pyplot as plt
import numpy as np

from keras_transformer.fonts import font_families

random = np.random.default_rng(1)

words, width, vocab_size = ["저는", "학생", "입니다"], 32, 20
embeddings = random.normal(size=(vocab_size, width))  # a vector for each of 20 words
w = random.normal(size=(width, width)) / np.sqrt(width)
u = random.normal(size=(width, width)) / np.sqrt(width)


def read(sentences):
    """Reads sentences of ids `(batch, length)`; returns all states `(batch, length, width)`."""
    state, states = np.zeros((len(sentences), width)), []
    for t in range(sentences.shape[1]):  # each step waits for the step before
        state = np.tanh(embeddings[sentences[:, t]] @ w + state @ u)
        states.append(state)
    return np.stack(states, axis=1)


h = read(np.array([[0, 1, 2]]))[0]
for i, word in enumerate(words):
    print(f"h{i}, after {word}: {h[i, :4].round(2)} ... ({width} numbers)")

# %% [markdown]
# The classic translator (Sutskever et al., 2014) has two such networks. The **encoder** reads the source and keeps
# only its last state, here $h_2$. The **decoder** writes the whole translation from this one state.

# %% [markdown]
# ## Three problems
#
# 1. **It waits.** $h_2$ needs $h_1$, and $h_1$ needs $h_0$. A graphics card can do thousands of things at once, but the
#    loop above gives it one at a time. (Chapter 11 measures this.)
# 2. **It is narrow.** A sentence of 3 words and one of 50 words must fit into the same 32 numbers.
# 3. **It forgets.** Each step mixes the state with a new word, so the first words fade.
#
# We can measure the third problem. We make sentences of random words, and ask: which was the first word? We look
# for the one matrix that reads it best from the last state (`np.linalg.lstsq` finds this matrix). It gives a number
# for each of the 20 words, and the largest one is the guess. Half of the sentences fit it, with 1 for the right
# word and 0 for the others. The other half tests it. (A column of ones lets it add a constant.) If even the best
# one cannot tell the first word, the state no longer holds it in a form that is easy to use.


# %%
def accuracy_of_first_word(vectors, sentences):
    """Finds the matrix on one half; returns on the other half how often it names the first word."""
    features = np.concatenate([vectors, np.ones((len(vectors), 1))], axis=1)
    wanted = np.eye(vocab_size)[sentences[:, 0]]
    half = len(vectors) // 2
    readout = np.linalg.lstsq(features[:half], wanted[:half], rcond=None)[0]
    guesses = (features[half:] @ readout).argmax(axis=1)
    return np.mean(guesses == sentences[half:, 0])


def draw_sentences(length):
    """Returns 4,000 sentences of random words."""
    return random.integers(vocab_size, size=(4000, length))


lengths = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32]
with_last_state = []
for length in lengths:
    sentences = draw_sentences(length)
    with_last_state.append(accuracy_of_first_word(read(sentences)[:, -1], sentences))
    print(f"{length:2} words: the first word is known in {with_last_state[-1]:.0%} of the sentences")
assert with_last_state[0] > 0.99 and with_last_state[-1] < 0.15  # a blind guess is right in 5 %

# %% [markdown]
# ## The repair: keep all states, and look back
#
# The states were there! $h_0$ knew the first word very well. So we keep them all. For each word that it writes, the
# decoder takes a mixture of all states, in which the useful states count most. Choosing the shares of this mixture is
# **attention**.
#
# To write "I", the decoder needs 저는. So let $h_0$ count 0.8, and let $h_1$ and $h_2$ count 0.1 each:

# %%
shares = np.array([0.8, 0.1, 0.1])
mixture = 0.8 * h[0] + 0.1 * h[1] + 0.1 * h[2]
np.testing.assert_allclose(shares @ h, mixture)  # the same as one product
distances = np.linalg.norm(mixture - h, axis=1)
assert distances[0] < distances[1:].min()
print("distance of the mixture to h0, h1, h2:", distances.round(2))

# %% [markdown]
# Does it help? We repeat the measurement with the mixture in place of the last state. $h_0$ counts 0.8, and all others
# together 0.2.


# %%
def attend_to_first(states, share=0.8):
    """Mixes the states of each sentence: the first one counts `share`, the others share the rest equally."""
    length = states.shape[1]
    if length == 1:
        return states[:, 0]
    shares = np.full(length, (1 - share) / (length - 1))
    shares[0] = share
    return shares @ states


with_attention = []
for length in lengths:
    sentences = draw_sentences(length)
    with_attention.append(accuracy_of_first_word(attend_to_first(read(sentences)), sentences))
assert min(with_attention) > 0.95

texts = {
    "state": "last state",
    "attention": "attention, h0 counts 0.8",
    "guess": "blind guess",
    "length": "length of the sentence, words",
    "accuracy": "first word known, share of sentences",
    "share": "share in the mixture",
    "left": "One state forgets, attention does not",
    "right": 'To write "I"',
}

# %% tags=["hide-input"]
plt.rcParams["font.family"] = font_families(*texts.values(), *words)
figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 3.8), layout="constrained", width_ratios=[2.2, 1])
left.plot(lengths, with_attention, "o-", color="#3a6ea5", label=texts["attention"])
left.plot(lengths, with_last_state, "o-", color="#d1603d", label=texts["state"])
left.axhline(1 / vocab_size, color="black", linewidth=0.8, linestyle=":", label=texts["guess"])
left.set(title=texts["left"], xlabel=texts["length"], ylabel=texts["accuracy"], ylim=(0, 1.05))
left.legend(loc="center right")
bars = right.bar([f"h{i}\n{word}" for i, word in enumerate(words)], shares, color="#3a6ea5")
right.bar_label(bars)
right.set(title=texts["right"], ylabel=texts["share"], ylim=(0, 1))
plt.show()

# %% [markdown]
# **What to look at.** The orange line falls: after six words the last state is no better than a blind guess (dotted).
# The blue line stays at the top for all lengths. Both lines use states of the same network. The difference is only
# that attention may look back. A trained network keeps words for longer. But the quality of such translators, too,
# fell with the length of the sentence (Bahdanau et al., 2015, figure 2).

# %% [markdown]
# ## Where do the shares come from?
#
# We chose 0.8 ourselves. A model must compute it, again for each word. It gives each state a **score**. This is any
# number, larger for a more useful state. A function named **softmax** turns the scores into shares. For the scores
# $z_1, \ldots, z_n$, share $i$ is $e^{z_i} / (e^{z_1} + \dots + e^{z_n})$. The shares are positive, and they add up to
# one. The difference of two scores decides the ratio of their shares: with a score larger by $\ln 8 \approx 2.08$, the
# share is 8 times as large.

# %%
scores = np.array([np.log(8), 0, 0])
powers = np.exp(scores)  # 8, 1 and 1
computed = powers / powers.sum()
np.testing.assert_allclose(computed, shares)
print("shares:", computed.round(2))

# %% [markdown]
# ## From repair to replacement
#
# Attention began as an addition to recurrent networks (Bahdanau et al., 2015). It cured the second and the third
# problem. The first one stayed: the states were still computed one after another.
#
# "Attention Is All You Need" (2017) went one step further. If attention can fetch any word from anywhere, no recurrent
# network is needed to carry words along. The **Transformer** has no recurrent layer: only attention moves information
# from word to word. All words of a known sentence are computed at the same time. (When it writes, it still writes one
# word after another: chapter 10.)
#
# | | recurrent, one state | recurrent with attention | Transformer |
# | --- | --- | --- | --- |
# | steps that wait for each other, to read or train on $n$ words | $n$ | $n$ | 1 in each layer |
# | what the decoder sees of the source | one vector | all states | all states |
# | way from the first word to the last | $n$ steps | $n$ steps in the encoder | 1 step |
# | chapter | this one | 2 | 3 to 10 |

# %% [markdown]
# ## Exercise
#
# ### Five minutes
#
# A sentence has 50 words.
#
# 1. All scores are equal. What share does each word get?
# 2. One word has the score $z$, and all 49 others have the score 0. How large must $z$ be, so that the one word gets
#    0.8? (For 3 words it was $\ln 8$.)
#
# Solve it on paper: the share is $e^z / (e^z + 49)$.

# %% tags=["hide-cell"]
# 1. Equal scores give equal shares: 1/50, which is 0.02.
equal = np.exp(np.zeros(50)) / np.exp(np.zeros(50)).sum()
np.testing.assert_allclose(equal, 0.02)

# 2. e^z / (e^z + 49) = 0.8 means e^z = 4 * 49 = 196, so z = ln 196.
z = np.log(0.8 / 0.2 * 49)
np.testing.assert_allclose(np.exp(z) / (np.exp(z) + 49), 0.8)
np.testing.assert_allclose(z, 5.28, atol=0.005)
print(f"equal scores: {equal[0]}, needed: z = {z:.2f}. About 17 times as many words need only 3.2 more.")

# %% [markdown]
# ### An hour
#
# Write `read_both_ways(x, forward, backward)`. `x` is `(length, width)`: the vectors of a sentence. `forward` and
# `backward` are a pair of matrices $W$ and $U$ each. One network reads from the left with `forward`, and another one
# from the right with `backward`. Both begin with a state of 0. Row $t$ of the answer holds the two states after word
# $t$, side by side, that of the left one first.
#
# Write it in a file `answer.py`, with NumPy alone. `python course/check.py 1 answer.py` says which of its properties
# hold. No solution is published.
#
# ### A project
#
# Train `keras.layers.SimpleRNN` and `keras.layers.LSTM` with 32 units to name the first word of a sentence. Draw the
# curve of this chapter for both, from 4 to 64 words. Write down what you expect before you look. Then find out
# whether more units or more training moves the place where the curve falls.

# %% [markdown]
# ## What to read next
#
# - Vaswani et al., 2017, ["Attention Is All You Need"](https://arxiv.org/abs/1706.03762), section 1
# - Sutskever et al., 2014, ["Sequence to Sequence Learning with Neural Networks"](https://arxiv.org/abs/1409.3215): one
#   state for a whole sentence
# - Bahdanau et al., 2015, ["Neural Machine Translation by Jointly Learning to Align and
#   Translate"](https://arxiv.org/abs/1409.0473): the first attention, with a figure of how quality falls with length
# - Next chapter: **2. Luong's dot-product attention**
