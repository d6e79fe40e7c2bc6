# %% [markdown]
# # 12a. Training: warm-up and label smoothing
#
# After this chapter you can train a translator as the paper does. Its learning rate rises and then falls, and its
# loss asks for 90 % certainty and no more. You train a small one here, and watch it learn. Chapter 12b says how good
# it is.
#
# **Before:** chapters 7 (masks) and 9 (the block). The trainings in this chapter take about half a minute on two
# cores.

# %%
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import random

import keras
import matplotlib.pyplot as plt
import numpy as np

import keras_transformer as kt
from keras_transformer.fonts import font_families

keras.utils.set_random_seed(12)

# %% [markdown]
# ## A learning rate that rises, then falls
#
# The first updates of a Transformer are dangerous. Its weights are random, its gradients point anywhere, and Adam
# does not know yet how large the gradients usually are. (Adam is the usual rule for updates. It divides a running
# mean of each gradient by the gradient's usual size.) So the paper starts with tiny steps and makes them larger for
# `warmup` steps. Then it makes them smaller again (section 5.3, equation 3):
#
# $$\text{rate} = d_\text{model}^{-0.5} \cdot \min(\text{step}^{-0.5},\; \text{step} \cdot \text{warmup}^{-1.5})$$
#
# The first term falls, the second one rises in a straight line. They meet at `step = warmup`. The paper counts
# steps from 1. Keras counts them from 0, so the library's schedule adds 1.


# %%
def paper_rate(step, d_model, warmup):
    """The paper's learning rate; `step` counts from 1."""
    return d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)


schedule = kt.WarmupSchedule(d_model=512, warmup_steps=4000)
for step in (1, 1000, 4000, 16_000, 100_000):
    rate = float(schedule(step - 1))
    print(f"{step:7,}: {rate:.7f}")
    np.testing.assert_allclose(rate, paper_rate(step, 512, 4000), rtol=1e-5)
np.testing.assert_allclose(paper_rate(4000, 512, 4000), (512 * 4000) ** -0.5)  # the peak

# %%
widths = {f"d_model {d_model}": kt.WarmupSchedule(d_model) for d_model in (128, 256, 512, 1024)}
kt.plots.schedule(widths, xlabel="step", ylabel="learning rate")

# %% [markdown]
# **What to look at.** All four curves have their peak at step 4,000. A wider model gets smaller rates, because it
# adds up more terms: the same change of each weight moves its outputs farther.

# %% [markdown]
# ## Label smoothing by hand
#
# In the usual target the right word has probability 1, and all others have 0. A softmax can never reach that. So the
# model pushes its *logits*, the numbers that go into the softmax, apart without end, and becomes too sure of itself.
# Label smoothing takes a small share $\varepsilon$ away from the right word and spreads it over the whole vocabulary
# (section 5.4 takes $\varepsilon = 0.1$). For $V = 5$ words:
#
# $$q = (1 - \varepsilon) \cdot [0, 0, 1, 0, 0] + \varepsilon / V = [0.02, 0.02, 0.92, 0.02, 0.02]$$
#
# The loss is the cross-entropy $-\sum_i q_i \log p_i$. With the natural logarithm its unit is called *nat*.

# %%
epsilon, right = 0.1, 2
smoothed = (1 - epsilon) * np.eye(5)[right] + epsilon / 5
np.testing.assert_allclose(smoothed, [0.02, 0.02, 0.92, 0.02, 0.02])

logits = np.array([0.5, -1.0, 3.0, 0.0, 1.0])
p = np.exp(logits) / np.exp(logits).sum()
by_hand = -(smoothed * np.log(p)).sum()
layer = kt.MaskedCrossentropy(label_smoothing=epsilon)
np.testing.assert_allclose(layer(np.array([[right]]), logits[None, None]), by_hand, rtol=1e-5)
print(f"plain {-np.log(p[right]):.3f}, smoothed {by_hand:.3f}")

# %% [markdown]
# What is the best answer under this loss? Let $c$ be the probability of the right word, and let the other four share
# the rest. The plain loss falls until $c = 1$. The smoothed loss has its lowest point at $c = 0.92$, and from there
# it rises: the model pays for being too sure. The lowest value is not 0. It is the entropy of $q$,
# $-\sum_i q_i \log q_i$.

# %%
certainty = np.linspace(0.3, 0.9995, 1400)
others = (1 - certainty) / 4
plain = -np.log(certainty)
smooth = -(0.92 * np.log(certainty) + 4 * 0.02 * np.log(others))
best = certainty[smooth.argmin()]
assert abs(best - 0.92) < 1e-3
entropy = -(smoothed * np.log(smoothed)).sum()
np.testing.assert_allclose(smooth.min(), entropy, rtol=1e-5)

# %% tags=["hide-input"]
plt.rcParams["font.family"] = font_families("probability")
figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
axes.plot(certainty, plain, color="#707070", label="plain")
axes.plot(certainty, smooth, color="#3a6ea5", label="smoothed, ε = 0.1")
axes.plot(best, smooth.min(), "o", color="#d1603d")
axes.annotate("0.92", (best, smooth.min()), xytext=(0.9, 0.75), ha="right", arrowprops={"arrowstyle": "->"})
axes.set(
    xlabel="probability c of the right word",
    ylabel="loss, nats",
)
axes.legend()
plt.show()

# %% [markdown]
# **What to look at.** The dot: there the blue curve turns upwards. The grey curve has no such point.
#
# The cross-entropy without smoothing is often given as *perplexity*. If the loss is $L$ per token, the perplexity is
# $e^L$: the model is as unsure as somebody who chooses among $e^L$ equally likely tokens. A loss of
# $\ln 5 \approx 1.61$ is a perplexity of 5; lower is better. In the library, `kt.metrics.Perplexity` computes it.

# %% [markdown]
# ## A corpus that a grammar generates
#
# A real corpus has millions of sentences. We need one that a small model learns in half a minute. So we write a small
# grammar of polite Korean and its English: ten subjects, eight verbs (one of them *to be*), three tenses, negation. It
# is a smaller version of the grammar in `examples/korean_corpus.py`, with which the demo of the library trains.
#
# The word order differs: 저는 책을 읽습니다 is "I book read". So word-by-word translation is not enough.

# %%
SUBJECTS = (
    "저는=I, 우리는=we, 그는=he, 그녀는=she, 그들은=they, 민수는=Minsu, "
    "지영은=Jiyoung, 학생은=the student, 의사는=the doctor, 제 친구는=my friend"
)
VERBS = {  # English forms: Korean stem, present, past, future; objects
    "read reads read": (
        "읽/읽습니다/읽었습니다/읽을 것입니다",
        "책을=a book, 신문을=a newspaper, 편지를=a letter",
    ),
    "drink drinks drank": ("마시/마십니다/마셨습니다/마실 것입니다", "물을=water, 커피를=coffee, 차를=tea"),
    "eat eats ate": ("먹/먹습니다/먹었습니다/먹을 것입니다", "사과를=an apple, 빵을=bread, 밥을=rice"),
    "buy buys bought": ("사/삽니다/샀습니다/살 것입니다", "책을=a book, 사과를=an apple, 빵을=bread"),
    "watch watches watched": ("보/봅니다/보았습니다/볼 것입니다", "영화를=a movie, 드라마를=a drama"),
    "go goes went": ("가/갑니다/갔습니다/갈 것입니다", "학교에=to school, 병원에=to the hospital"),
    "learn learns learned": ("배우/배웁니다/배웠습니다/배울 것입니다", "한국어를=Korean, 영어를=English"),
}
TIMES = ("=, 매일=every day", "=, 어제=yesterday", "=, 내일=tomorrow")
NEGATIONS = ("않습니다", "않았습니다", "않을 것입니다")
COPULAS = (("입니다", ""), ("이 아닙니다", "not "))
JOBS = "학생=a student, 선생님=a teacher, 군인=a soldier, 회사원=an office worker"


def entries(text):
    """Returns the (Korean, English) entries of a table."""
    return [entry.split("=") for entry in text.split(", ")]


def english_verb(subject, verb, tense, negative):
    """Returns the verb with its auxiliaries, such as "does not drink"."""
    base, third, past = verb.split()
    singular = subject not in ("I", "we", "they")
    if tense == 2:
        return f"will not {base}" if negative else f"will {base}"
    if negative:
        return f"{'did' if tense else 'does' if singular else 'do'} not {base}"
    return past if tense else third if singular else base


def sentence(*words):
    """Joins words to a sentence that begins with a capital."""
    text = " ".join(" ".join(words).split()) + "."
    return text[0].upper() + text[1:]


def generated():
    """Returns all pairs by (subject, verb, object)."""
    groups = {}
    for korean, english in entries(SUBJECTS):
        for verb, (forms, objects) in VERBS.items():
            stem, *forms = forms.split("/")
            for thing, translation in entries(objects):
                group = groups.setdefault((english, verb, thing), [])
                for tense, form in enumerate(forms):
                    for when, adverb in entries(TIMES[tense]):
                        for negative in (False, True):
                            action = f"{stem}지 {NEGATIONS[tense]}" if negative else form
                            done = english_verb(english, verb, tense, negative)
                            pair = (
                                sentence(korean, when, thing, action),
                                sentence(english, done, translation, adverb),
                            )
                            group.append(pair)
        for job, translation in entries(JOBS):
            if english not in ("we", "they", "the student"):
                be = "am" if english == "I" else "is"
                groups[english, "be", job] = [
                    (sentence(korean, job + ending), sentence(english, be, no + translation))
                    for ending, no in COPULAS
                ] * 4  # there are few of them, so each comes four times
    return groups


# %% [markdown]
# We keep one in ten (subject, verb, object) combinations for the test, with all their tenses. So the model knows each
# word of the test, but none of its sentences. Otherwise a model that learns by heart would look good. 저는 학생입니다
# is in the test.

# %%
groups = generated()
chooser = random.Random(12)
withheld = {("I", "be", "학생"), *chooser.sample(sorted(groups), len(groups) // 10)}
train = [pair for key, pairs in groups.items() if key not in withheld for pair in pairs]
test = sorted({pair for key in withheld for pair in groups[key]})
chooser.shuffle(train)
chooser.shuffle(test)
assert not set(train) & set(test) and ("저는 학생입니다.", "I am a student.") in test
print(f"{len(train):,} pairs to train on, {len(test)} to test with")
for korean, english in train[:4]:
    print(f"  {korean}  =  {english}")

# %% [markdown]
# The tokenizer learns pieces of words from the training sentences, one vocabulary for both languages (chapter 10
# shows how). `character_coverage=1.0` keeps every syllable: by default, characters as rare as 갔 here become
# "unknown". `Batches` puts sentences into batches. `batch_tokens` is the largest number of tokens in a batch, padding
# included, and `num_buckets=1` does not sort the sentences by length. A batch has three parts. The encoder reads
# `source`. The decoder reads `target`, the translation shifted right by one (teacher forcing, chapter 7): it starts
# with `bos` (2). It should answer with the labels, the same translation that ends with `eos` (3). So each place
# learns the *next* piece, and all places learn at once.

# %%
tokenizer = kt.text.SentencePieceTokenizer.train(
    [text for pair in train for text in pair], 300, character_coverage=1.0
)
batches = kt.data.Batches(train, tokenizer, batch_tokens=1024, num_buckets=1)
tests = kt.data.Batches(test, tokenizer, batch_tokens=1024, num_buckets=1)

inputs, targets = next(iter(batches.dataset()))[:2]
source, target = (inputs[name][0].numpy().tolist() for name in ("source", "target"))
labels = targets[0].numpy().tolist()
print("source", tokenizer.pieces([i for i in source if i]))
print("target", tokenizer.pieces([i for i in target if i]))
print("labels", tokenizer.pieces([i for i in labels if i]))
length = labels.index(3)
assert target[0] == 2 and target[1 : length + 1] == labels[:length]

# %% [markdown]
# ## Train
#
# The model is the paper's, only smaller: two layers on each side, $d_\text{model} = 64$, four heads. Adam has the
# paper's $\beta_2 = 0.98$ and $\varepsilon = 10^{-9}$, dropout is 0.1. (This $\varepsilon$ keeps Adam from dividing
# by 0. It is not the one of label smoothing.) `MaskedCrossentropy` is the loss from above, as a mean over the real
# tokens: the padding does not count. The warm-up takes 150 steps, not 4,000, because the training has only a few
# hundred. `from_peak` gives the paper's curve by its highest rate. `kt.training.Adam` computes what Keras's Adam
# computes, only faster.
#
# An *epoch* is one pass over the training pairs. After each one the model translates the first test sentence. Chapter
# 10 shows how it writes a sentence. Here we only read it.

# %%
model = kt.Transformer(tokenizer.vocab_size, num_layers=2, d_model=64, num_heads=4, d_ff=128, dropout=0.1)
model.compile(
    kt.training.Adam(kt.WarmupSchedule.from_peak(4e-3, 150, 64), beta_2=0.98, epsilon=1e-9),
    kt.MaskedCrossentropy(label_smoothing=0.1),
    metrics=[kt.MaskedAccuracy()],
)
translator = kt.serving.Translator(model, tokenizer)
sources, references = map(list, zip(*test, strict=True))
first_lines = []


def translate_first(epoch, logs):
    """Translates the first test sentence."""
    first_lines.append(translator.translate(sources[:1])[0])


history = model.fit(
    batches.dataset(),
    steps_per_epoch=batches.steps,
    epochs=8,
    shuffle=False,  # each epoch has an order of its own already
    validation_data=tests.dataset(epochs=1),
    callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=translate_first)],
    verbose=0,
).history
print(f"{sources[0]}  =  {references[0]}")
for epoch, (value, line) in enumerate(zip(history["val_loss"], first_lines, strict=True), 1):
    print(f"{epoch:3}  loss {value:.2f}  {line:.80}")

# %%
vocab_size = tokenizer.vocab_size
high, low = 0.9 + 0.1 / vocab_size, 0.1 / vocab_size
floor = -high * np.log(high) - (vocab_size - 1) * low * np.log(low)
epochs = range(1, len(first_lines) + 1)

# %% tags=["hide-input"]
figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
axes.plot(epochs, history["loss"], "o-", color="#3a6ea5", label="training")
axes.plot(epochs, history["val_loss"], "o-", color="#d1603d", label="test")
axes.axhline(floor, color="#707070", linestyle="--", label="lowest possible")
axes.set(xlabel="epoch", ylabel="smoothed loss, nats per token")
axes.legend()
plt.show()
assert floor < history["val_loss"][-1] < history["val_loss"][0]

# %% [markdown]
# **What to look at.** The loss comes to rest above the dashed line, not above 0: that is the entropy of the smoothed
# targets. In the first epochs the training loss is the higher one. Dropout is on only in training, and the training
# loss is a mean over the epoch, in which the model gets better. The translations printed above show what changes. At
# first the same pieces repeat, then there is an English sentence with wrong words, and at the end the words are
# right.
#
# The page below holds the trained model, its weights and its tokenizer, and runs without a server. Type a sentence of
# the grammar, and the page translates it and shows which Korean pieces each English piece reads. Chapter 13 says how
# to read such a page.

# %%
kt.plots.attention(translator, ["저는 학생입니다.", sources[0]], language="en")

# %% [markdown]
# ## Does the warm-up matter?
#
# Measure it. We train the same model from the same start for 120 steps, with a highest rate of 0.01. Once there is a
# warm-up of 60 steps and the fall after it, once this rate in every step.


# %%
def short_training(learning_rate):
    """Returns the mean loss of each 20 steps of a short training."""
    keras.utils.set_random_seed(12)
    fresh = kt.Transformer(tokenizer.vocab_size, num_layers=2, d_model=64, num_heads=4, d_ff=128, dropout=0.1)
    adam = kt.training.Adam(learning_rate, beta_2=0.98, epsilon=1e-9)
    fresh.compile(adam, kt.MaskedCrossentropy(label_smoothing=0.1))
    return fresh.fit(batches.dataset(), steps_per_epoch=20, epochs=6, shuffle=False, verbose=0).history[
        "loss"
    ]


with_warmup = short_training(kt.WarmupSchedule.from_peak(0.01, 60, 64))
without = short_training(0.01)

# %% tags=["hide-input"]
figure, axes = plt.subplots(figsize=(7, 3.4), layout="constrained")
axes.plot(range(20, 140, 20), with_warmup, "o-", color="#3a6ea5", label="with warm-up")
axes.plot(range(20, 140, 20), without, "o-", color="#d1603d", label="0.01 in every step")
axes.set(xlabel="step", ylabel="smoothed loss, nats per token")
axes.legend()
plt.show()

# %% [markdown]
# **What to look at.** The start and the end. The large steps win at first. Then the other run overtakes: over the
# last 20 steps its loss was 1.1 in our run, against 1.4 with a constant rate. It differs in two ways, the rise at the
# start and the fall after it, and this experiment does not say which one helped. With a lower rate, such as 0.004,
# this little model does as well without a warm-up. Deep models do not: the warm-up lets them bear a rate that would
# break them at the start. Xiong et al. (2020) explain why, and why pre-norm (chapter 9) can do without it.

# %% [markdown]
# ## Exercise
#
# ### Five minutes
#
# 1. The rate peaks at `step = warmup`. At which step has it fallen to half of the peak? Use the formula, then
#    check it with `kt.WarmupSchedule(512, 4000)`.
# 2. With $\varepsilon = 0.1$ and a vocabulary of 32,000 pieces, what is the lowest loss that a perfect model can
#    reach? Is it more or less than for $V = 5$, and why?

# %% tags=["hide-cell"]
# 1. After the peak the rate is proportional to step**-0.5. It is half of warmup**-0.5 at step = 4 * warmup,
#    so at step 16,000. On the way up, at step 2,000, the rate is half of the peak, too.
peak, later = float(schedule(4000 - 1)), float(schedule(16_000 - 1))
np.testing.assert_allclose(later, peak / 2, rtol=1e-5)


# 2. A perfect model gives exactly the smoothed target. Its loss is then the entropy of the target, and no loss can
#    be lower. For V = 32,000 it is about 1.36, more than the 0.39 for V = 5. The share of 0.1 is spread over more
#    words, so each word gets less, and -log is larger for smaller probabilities. This part is about 0.1 * ln(10 V), so
#    it grows with V.
def lowest_loss(size, share=0.1):
    """The entropy of a smoothed target."""
    top, rest = 1 - share + share / size, share / size
    return -top * np.log(top) - (size - 1) * rest * np.log(rest)


np.testing.assert_allclose(lowest_loss(5), entropy)
assert 1.3 < lowest_loss(32_000) < 1.4
print(f"{lowest_loss(5):.3f}, {lowest_loss(32_000):.3f}")

# %% [markdown]
# ### An hour
#
# Write `adam(start, gradient, rates)`. `start` is a vector, `gradient` is a function of such a vector, and `rates`
# holds a learning rate for each step. Take one step of Adam for each rate. Its formulas are not in this chapter:
# read algorithm 1 of [Kingma and Ba, 2015](https://arxiv.org/abs/1412.6980), half a page. Take $\beta_1 = 0.9$,
# $\beta_2 = 0.98$ and $\varepsilon = 10^{-9}$, and correct both means for their start at 0. Return the last vector.
# Leave `start` as it was.
#
# Write it in a file `answer.py`, with NumPy alone. `python course/check.py 12a answer.py` says which of its
# properties hold. No solution is published.
#
# ### A project
#
# Does label smoothing help with few pairs? Train the translator of this chapter with 250, 500, 1,000 and all pairs,
# with a smoothing of 0, 0.1 and 0.3, three seeds each. Compare the plain cross-entropy and the share of exact
# translations. Do they agree on the best smoothing?

# %% [markdown]
# ## What to read next
#
# - Vaswani et al., 2017, ["Attention Is All You Need"](https://arxiv.org/abs/1706.03762), section 5 (training)
# - Kingma and Ba, 2015, ["Adam"](https://arxiv.org/abs/1412.6980), algorithm 1
# - Szegedy et al., 2016, ["Rethinking the Inception Architecture"](https://arxiv.org/abs/1512.00567), section 7:
#   label smoothing, where it comes from
# - Documents of this library: *Training* (how to read curves, sizes for your data)
# - Next chapter: **12b. BLEU, greedy search and beams**
