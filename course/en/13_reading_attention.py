# %% [markdown]
# # 13. Reading attention
#
# After this chapter you can draw what the heads of a trained model look at, and read a word alignment from a
# translator. You can say what such a picture shows and what it does not show. You train two small models here, and
# both solve a task that needs attention.
#
# **Before:** chapters 6 (several heads) and 12a (training).

# %%
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import itertools
import random

import keras
import matplotlib.pyplot as plt
import numpy as np

import keras_transformer as kt
from keras_transformer.fonts import font_families

keras.utils.set_random_seed(13)

# %% [markdown]
# ## The paper's picture: "making ... more difficult"
#
# The paper prints a famous picture (its figure 3): in the sentence "... making the registration or voting process
# more difficult", many heads connect *making* with *more* and *difficult*. These words stand far apart, but they
# belong together.
#
# We build a small case in which we know the truth. In our sentences a verb is hidden, and the model must guess
# it. Only two words, far to the right, decide it:
#
# | | difficult, expensive, complicated | important, useful, interesting |
# | --- | --- | --- |
# | **more** | making | considering |
# | **too** | finding | calling |
#
# One of the two words is not enough. Subject, noun and time say nothing about the verb.

# %%
VERBS = {
    ("more", "difficult"): "making",
    ("more", "important"): "considering",
    ("too", "difficult"): "finding",
    ("too", "important"): "calling",
}
ADJECTIVES = {
    "difficult": ("difficult", "expensive", "complicated"),
    "important": ("important", "useful", "interesting"),
}
SUBJECTS = ("they are", "we are", "many states are", "the government is")
NOUNS = ("the registration process", "the voting process", "the new law", "this journey", "the whole project")
ENDS = ("", "this year", "again", "since 2009")

sentences = []
for (degree, kind), verb in VERBS.items():
    for adjective, subject, noun, end in itertools.product(ADJECTIVES[kind], SUBJECTS, NOUNS, ENDS):
        words = f"{subject} {verb} {noun} {degree} {adjective} {end} .".split()
        sentences.append((words, words.index(verb)))
random.Random(13).shuffle(sentences)

MASK = 4
vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
vocabulary += sorted({word for words, _ in sentences for word in words})
number = {word: i for i, word in enumerate(vocabulary)}
longest = max(len(words) for words, _ in sentences)


def hidden(words, place):
    """Returns ids with the word at `place` hidden."""
    row = [number[word] for word in words]
    row[place] = MASK
    return row + [0] * (longest - len(row))


ids = np.array([hidden(words, place) for words, place in sentences], "int32")
answers = np.zeros_like(ids)  # 0 is padding: only the hidden place counts in the loss
for row, (words, place) in enumerate(sentences):
    answers[row, place] = number[words[place]]
print(len(sentences), "sentences, such as", " ".join(sentences[0][0]))

# %% [markdown]
# The model is an encoder with one layer of four heads. Learned positions (chapter 8) are added to the embeddings, and
# an output layer on top of the encoder, `MaskedLanguageHead`, gives the logits of the words at each place. It trains on
# 800 sentences, and 160 are left to test it.

# %%
encoder = kt.layers.Encoder(1, num_heads=4, d_ff=64, dropout=0.0)
embeddings = kt.layers.Embeddings(
    len(vocabulary),
    32,
    kt.layers.LearnedPositions(longest),
    norm=kt.layers.LayerNormalization(epsilon=1e-12),
    dropout=0.0,
    output_bias=True,  # a number to add to each word's logit
)
guesser = kt.models.EncoderModel(embeddings, encoder, head=kt.models.MaskedLanguageHead())
guesser.compile(keras.optimizers.Adam(3e-3), kt.MaskedCrossentropy(), metrics=[kt.MaskedAccuracy()])
guesser.fit(ids[:800], answers[:800], batch_size=32, epochs=10, verbose=0)
_, accuracy = guesser.evaluate(ids[800:], answers[800:], verbose=0)
print(f"{accuracy:.0%} of the test's verbs are right.")
assert accuracy > 0.9

# %% [markdown]
# Now we look inside. `return_attention_scores=True` gives the weights of each layer,
# `(batch, num_heads, length, length)`. We draw one query. The word that looks stands above, the words that it can
# look at stand below, and each head has its colour. The larger the weight, the thicker the line.

# %%
COLOURS = ("#3a6ea5", "#d1603d", "#2a9d8f", "#8a6fb0")


def draw_heads(axes, words, weights, place, title):
    """Draws what each head looks at from one place; `weights` is `(num_heads, length)`."""
    for head, (row, colour) in enumerate(zip(weights, COLOURS, strict=True)):
        for i, weight in enumerate(row):
            shift = 0.1 * (head - 1.5)
            axes.plot(
                [place + shift, i + shift],
                [1, 0],
                color=colour,
                linewidth=5 * weight,
                alpha=min(1, weight + 0.1),
            )
        axes.plot([], [], color=colour, linewidth=3, label=f"head {head + 1}")
    for i, word in enumerate(words):
        colour = "black" if i == place else "#b0b0b0"
        axes.text(i, 1.05, word, ha="left", va="bottom", rotation=40, color=colour)
        axes.text(i, -0.05, word, ha="right", va="top", rotation=40)
    axes.set(xlim=(-1, len(words)), ylim=(-0.7, 1.7), title=title)
    axes.text(-1, 1, "query", ha="right", va="center")
    axes.text(-1, 0, "key", ha="right", va="center")
    axes.set_axis_off()
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)


text = "many states are making the registration process more difficult since 2009 ."
example = text.split()
place = example.index("making")
logits, scores = guesser(np.array([hidden(example, place)]), return_attention_scores=True)
looks = np.array(scores[0])[0, :, place, : len(example)]
assert vocabulary[int(np.argmax(logits[0, place]))] == "making"

title = "What the hidden word looks at"

# %% tags=["hide-input"]
plt.rcParams["font.family"] = font_families(title)
figure, axes = plt.subplots(figsize=(9, 4.2), layout="constrained")
draw_heads(axes, example, looks, place, title)
plt.show()

# %% [markdown]
# **What to look at.** Find the thickest lines. They go from *making* (the model sees only `[MASK]` there) to
# *difficult* or *more*, over the words in between. The heads differ. Some give nearly all of their weight to such a
# word. Others give a little to every word, so their lines are thin and pale. Which head reads which word depends on the
# random numbers that the training started from.
#
# One picture proves little, so we measure it on all test sentences: which share of the attention of the hidden word
# falls on the two words that decide? The next cell prints the mean for each head. If attention were spread evenly, it
# would be a quarter at most.

# %%
deciding = np.isin(ids[800:], [number[word] for word in ("more", "too", *sum(ADJECTIVES.values(), ()))])
_, scores = guesser(ids[800:], return_attention_scores=True)
rows = np.arange(len(deciding))
places = np.array([place for _, place in sentences[800:]])
from_hidden = np.array(scores[0])[rows, :, places]  # (sentences, num_heads, length)
shares = (from_hidden * deciding[:, None]).sum(-1).mean(0)
even = (2 / (ids[800:] != 0).sum(-1)).mean()
print(f"share of the two words, head by head: {np.round(shares, 2)}, even: {even:.2f}")
assert shares.mean() > 2 * even

# %% [markdown]
# The picture points to two words. To know that they *matter*, change them. We exchange *more* and *too* in every
# test sentence. Then we exchange two nouns instead, *registration* and *voting*. The first should change the
# answers, the second should not.


# %%
def guesses(rows_of_ids):
    """The id that the model puts into each hidden place."""
    return np.argmax(guesser(rows_of_ids), -1)[rows, places]


def exchanged(rows_of_ids, first, second):
    """Exchanges two words in all rows."""
    a, b = number[first], number[second]
    return np.where(rows_of_ids == a, b, np.where(rows_of_ids == b, a, rows_of_ids))


before = guesses(ids[800:])
other_degree = np.mean(guesses(exchanged(ids[800:], "more", "too")) != before)
other_noun = np.mean(guesses(exchanged(ids[800:], "registration", "voting")) != before)
print(f"answers that change: more and too exchanged {other_degree:.0%}, nouns exchanged {other_noun:.0%}")
assert other_degree > 0.9 and other_noun < 0.1

# %% [markdown]
# Here attention and truth agree. That is not always so: chapter 15 shows a case where they differ.

# %% [markdown]
# ## Alignment: which word translates which
#
# In a translator, cross-attention connects each written word with the source. Its first picture (Bahdanau et al., 2015,
# figure 3) showed that a model learns, from sentence pairs alone, which word translates which. This is called an
# *alignment*.
#
# Korean puts the verb last. English puts it after the subject. So the lines must cross. We train a tiny translator on
# sentences in the past tense. Each has a subject, an object and a verb, and some have a place and a time.

# %%
people = "저는=I, 우리는=we, 그는=he, 그녀는=she, 민수는=Minsu, 지영은=Jiyoung, 학생은=the student, 의사는=the doctor"
WHO = dict(person.split("=") for person in people.split(", "))
WHAT = (
    "책을 읽었습니다=read a book, 편지를 읽었습니다=read a letter, 편지를 썼습니다=wrote a letter, "
    "소설을 썼습니다=wrote a novel, 커피를 마셨습니다=drank coffee, 물을 마셨습니다=drank water, "
    "빵을 먹었습니다=ate bread, 사과를 먹었습니다=ate an apple, 사과를 샀습니다=bought an apple, "
    "책을 샀습니다=bought a book, 영화를 보았습니다=watched a movie, 드라마를 보았습니다=watched a drama"
)
WHERE = {"": "", "집에서": "at home", "도서관에서": "at the library", "공원에서": "in the park"}
WHEN = {"": "", "어제": "yesterday", "오늘": "today", "아침에": "this morning"}

examples = []  # Korean, English, and which Korean word each English content word comes from
for (who, i), what, (where, at), (when, then) in itertools.product(
    WHO.items(), WHAT.split(", "), WHERE.items(), WHEN.items()
):
    korean, english = what.split("=")
    thing, action = korean.split()
    verb, *object_words = english.split()
    truth = {i.split()[-1]: who, verb: action, object_words[-1]: thing}
    truth |= {word.split()[-1]: source for word, source in ((at, where), (then, when)) if word}
    texts = (f"{who} {when} {where} {korean} .", f"{i} {english} {at} {then} .")
    examples.append((*(" ".join(text.split()) for text in texts), truth))
random.Random(13).shuffle(examples)
train, test = examples[:1200], examples[1200:]
print(test[0])

# %% [markdown]
# We make each word one token, so that the picture shows words. The vocabulary is a list of all words: a
# `WordPieceTokenizer` splits nothing that it knows as a whole.

# %%
words = sorted({word for korean, english, _ in examples for word in f"{korean} {english}".split()})
tokenizer = kt.text.WordPieceTokenizer(
    ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words], lower_case=False
)
batches = kt.data.Batches([pair[:2] for pair in train], tokenizer, batch_tokens=640, num_buckets=1)

model = kt.Transformer(tokenizer.vocab_size, num_layers=2, d_model=64, num_heads=4, d_ff=128, dropout=0.1)
model.compile(
    kt.training.Adam(kt.WarmupSchedule.from_peak(3e-3, 60, 64), beta_2=0.98, epsilon=1e-9),
    kt.MaskedCrossentropy(label_smoothing=0.1),
)
model.fit(batches.dataset(), steps_per_epoch=batches.steps, epochs=10, shuffle=False, verbose=0)
translator = kt.serving.Translator(model, tokenizer)
translations = translator.translate([korean for korean, _, _ in test])
exact = np.mean([text == english for text, (_, english, _) in zip(translations, test, strict=True)])
print(f"{exact:.0%} of {len(test)} new sentences are translated exactly.")
assert exact > 0.8

# %%
text = "의사는 아침에 도서관에서 편지를 썼습니다 ."
title = "Cross-attention: which source tokens each written token reads"
kt.plots.translation_attention(
    translator, text, title=title, panel="layer {layer}, head {head}", label="attention weight"
)

# %% [markdown]
# **What to look at.** Each row is a word that the model writes, each column a Korean word. Follow the row *wrote*:
# several heads look at 썼습니다, at the end of the sentence. In the row *letter* many heads look at 편지를, one word
# before it. After the subject, *the doctor*, the dark cells run from the right to the left: the order of the words is
# turned round. Look also at what is *not* so clear: some heads look at the full stop, others at neighbours.
#
# The library also shows this as a page for the browser. There you can switch heads off, go from step to step, and
# see how a single weight comes about. In a notebook the page appears below; its method `save("page.html")` writes
# it to a file. (`live=False` records these sentences. A translator with a SentencePiece tokenizer, as in
# chapter 12a, runs in the page itself.)

# %%
kt.plots.attention(translator, [text, test[0][0]], live=False, language="en")

# %% [markdown]
# ## How good is the alignment?
#
# We know which Korean word each English word comes from. So we can count: how often is the largest weight on the
# right word? We look at each head of each layer, and at the mean of a layer's heads.
#
# Row $t$ of cross-attention belongs to the word that is *written* at step $t$. Its query comes from the word
# before.


# %%
def padded(rows):
    """Rows of ids as an array, filled up with 0."""
    length = max(map(len, rows))
    return np.array([row + [0] * (length - len(row)) for row in rows], "int32")


source = padded([[*row, 3] for row in tokenizer.tokenize([korean for korean, _, _ in test]).to_list()])
target = padded([[2, *row] for row in tokenizer.tokenize([english for _, english, _ in test]).to_list()])
_, scores = model({"source": source, "target": target}, return_attention_scores=True)
cross = np.array(scores["cross"])  # (layers, sentences, num_heads, target_len, source_len)


def hits(weights):
    """Returns how often the largest weight is on the right word; `(sentences, target_len, source_len)`."""
    found = [
        korean.split()[min(row[english.split().index(word)].argmax(), len(korean.split()) - 1)] == right
        for row, (korean, english, truth) in zip(weights, test, strict=True)
        for word, right in truth.items()
    ]
    return np.mean(found)


best = 0.0
for layer, weights in enumerate(cross, 1):
    by_head = [hits(weights[:, head]) for head in range(4)]
    mean = hits(weights.mean(1))
    best = max(best, mean, *by_head)
    print(f"layer {layer}: heads {np.round(by_head, 2)}, mean of the heads {mean:.2f}")
chance = np.mean([1 / len(korean.split()) for korean, _, _ in test])
print(f"by chance {chance:.2f}")
assert best > 2 * chance

# %% [markdown]
# Three things to learn from these numbers:
#
# - The alignment is there, far above chance, although nobody told the model which word belongs to which.
# - No head is *the* alignment. A single head is often wrong, and the mean of the heads of one layer is usually
#   better than most of them. Garg et al. (2019) take the mean of the last layer but one in large models, and so
#   does `model.score`.
# - Even the best row is not perfect, while nearly all translations are. The state above a Korean word already holds
#   parts of its neighbours: the encoder has mixed them. A head can read 편지를 at the place of another word.

# %% [markdown]
# ## A weight is not a contribution
#
# One more trap. The output of a head is $\sum_j \alpha_j v_j$. A large weight $\alpha_j$ on a tiny value $v_j$
# adds almost nothing. Trained models use this: a head that has nothing to do in a sentence puts its weight on a
# full stop, or on the first token, whose value is close to zero. So look at $\lVert \alpha_j v_j \rVert$ beside
# $\alpha_j$ (Kobayashi et al., 2020). By hand:

# %%
alphas = np.array([0.8, 0.2])
values = np.array([[0.01, 0.0], [0.0, 3.0]])  # a full stop, a noun
contributions = np.linalg.norm(alphas[:, None] * values, axis=-1)
print(contributions / contributions.sum())
np.testing.assert_allclose(contributions, [0.008, 0.6])
assert alphas.argmax() == 0 and contributions.argmax() == 1

# %% [markdown]
# ## What you can read, and what you cannot
#
# | you see | you may say | you may not say |
# | --- | --- | --- |
# | a thick line | in this layer, this head reads from this place | this word is the reason for the output |
# | no line | this head does not read from there | the word has no influence (it may come by another head or layer) |
# | the same line in many sentences | this head has a habit; count how often | the head is "the grammar head" |
# | a line that vanishes after training again | there are several ways to the same answer | attention is meaningless |
#
# To claim more, change the input and look at the output, as we did with *more* and *too*. `kt.explain` does this
# for a translator: it hides one token after another.

# %% [markdown]
# ## Exercise
#
# ### Five minutes
#
# The entropy of the weights $w_1, \ldots, w_n$ is $-\sum_i w_i \log w_i$. A head that looks everywhere alike has the
# entropy $\log n$, a head that looks at one word 0. Compute the mean entropy of each head of the guesser, for the
# hidden word on the test sentences (`from_hidden`). Which head is the sharpest? Is every head sharper than an even
# spread?

# %% tags=["hide-cell"]
# The head with the smallest entropy is the sharpest. Which one it is depends on the training. Each head has a smaller
# entropy than an even spread, so each one is sharper.
entropies = -(from_hidden * np.log(np.maximum(from_hidden, 1e-12))).sum(-1).mean(0)
even_entropy = np.log((ids[800:] != 0).sum(-1)).mean()
print(f"heads {np.round(entropies, 2)}, even {even_entropy:.2f}")
assert np.all(entropies > 0) and np.all(entropies < even_entropy)
print("the sharpest head:", entropies.argmin() + 1)

# %% [markdown]
# ### An hour
#
# Write `rollout(weights)`, which follows attention through all layers (Abnar and Zuidema, 2020). `weights` is
# `(layers, heads, length, length)`. For each layer take the mean of the heads and average it with the identity
# matrix, because the residual connection hands each token on. Multiply the layers, so that row $i$ says how much of
# token $i$ above came from each token below.
#
# Write it in a file `answer.py`, with NumPy alone. `python course/check.py 13 answer.py` says which of its properties
# hold. No solution is published.
#
# ### A project
#
# Take ten sentences of a translator of your own, and draw the alignment of each by hand before you open the attention
# viewer. Which head agrees best with you? Is it the same head for all sentences? Measure the agreement by a number,
# and give that of a head with even weights beside it.

# %% [markdown]
# ## What to read next
#
# - Vaswani et al., 2017, ["Attention Is All You Need"](https://arxiv.org/abs/1706.03762), figures 3 to 5
# - Bahdanau et al., 2015, ["Neural Machine Translation by Jointly Learning to Align and
#   Translate"](https://arxiv.org/abs/1409.0473), figure 3
# - Kobayashi et al., 2020, ["Attention is Not Only a Weight"](https://arxiv.org/abs/2004.10102)
# - Garg et al., 2019, ["Jointly Learning to Align and Translate with Transformer
#   Models"](https://arxiv.org/abs/1909.02074)
# - Documents of this library: *Attention viewer*, *Pictures*
# - Next chapter: **14. What came after**
