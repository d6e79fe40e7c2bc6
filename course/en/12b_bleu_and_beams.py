# %% [markdown]
# # 12b. BLEU, greedy search and beams
#
# After this chapter you can say how good a translation is, by hand and by `sacrebleu`. You can also say what a beam
# finds that greedy search does not, and when that helps.
#
# **Before:** chapter 10 (a translation, step by step) and chapter 12a (training). The training in this chapter takes
# about 20 seconds on two cores.

# %%
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import random
from collections import Counter

import keras
import matplotlib.pyplot as plt
import numpy as np
import sacrebleu

import keras_transformer as kt
from keras_transformer.fonts import font_families

keras.utils.set_random_seed(12)

# %% [markdown]
# ## BLEU by hand
#
# How good is a translation? An *n-gram* is $n$ words in a row. BLEU (Papineni et al., 2002) counts which share of the
# 1-, 2-, 3- and 4-grams of the translation also occur in the *reference*, a translation by a person. An n-gram counts
# at most as often as it occurs in the reference: in the code, `&` takes the smaller of the two counts. These shares
# are the precisions $p_1 \ldots p_4$. It takes their geometric mean. A short translation can have a good precision
# without saying much, so a *brevity penalty* lowers its score:
#
# $$\text{BLEU} = 100 \cdot \min(1, e^{1 - r/c}) \cdot (p_1 p_2 p_3 p_4)^{1/4}$$
#
# $c$ is the length of the translation, $r$ that of the reference. One word too many, "the", costs a surprising
# half:


# %%
def bleu_by_hand(translation, reference):
    """BLEU of one sentence."""
    words, right_words = translation.split(), reference.split()
    precisions = []
    for size in range(1, 5):
        ours, theirs = (
            Counter(tuple(text[i : i + size]) for i in range(len(text) - size + 1))
            for text in (words, right_words)
        )
        precisions.append((ours & theirs).total() / ours.total())
    brevity = min(1.0, np.exp(1 - len(right_words) / len(words)))
    return precisions, brevity, 100 * brevity * np.prod(precisions) ** 0.25


reference = "She does not drink coffee every day"
for translation in ("She does not drink the coffee every day", "She does not drink"):
    precisions, brevity, value = bleu_by_hand(translation, reference)
    print(f"{translation}: {np.round(precisions, 3)}, {brevity:.3f}, BLEU {value:.1f}")
    library = sacrebleu.corpus_bleu([translation], [[reference]], tokenize="none").score
    np.testing.assert_allclose(value, library, rtol=1e-6)
np.testing.assert_allclose(bleu_by_hand("She does not drink the coffee every day", reference)[2], 50)

# %% [markdown]
# $\frac{7}{8} \cdot \frac{5}{7} \cdot \frac{3}{6} \cdot \frac{1}{5} = \frac{1}{16}$, and its fourth root is a half. The
# second translation has all precisions 1, but only four of seven words, so the brevity penalty
# $e^{1 - 7/4} \approx 0.47$ leaves 47. The real BLEU of a corpus adds up the counts of all sentences before it divides,
# and a standard splits the words. `sacrebleu` does both, and names its choices in a *signature*. A BLEU without one
# cannot be compared with another. For comparison: the paper's base model reaches 27.3 from English to German and 38.1
# from English to French (table 2).

# %% [markdown]
# ## The translator of chapter 12a, again
#
# Here is the same grammar, the same split into training and test, and the same tokenizer. The code is that of chapter
# 12a, so it is folded.

# %% tags=["hide-input"]
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


groups = generated()
chooser = random.Random(12)
withheld = {("I", "be", "학생"), *chooser.sample(sorted(groups), len(groups) // 10)}
train = [pair for key, pairs in groups.items() if key not in withheld for pair in pairs]
test = sorted({pair for key in withheld for pair in groups[key]})
chooser.shuffle(train)
chooser.shuffle(test)
assert not set(train) & set(test) and ("저는 학생입니다.", "I am a student.") in test

tokenizer = kt.text.SentencePieceTokenizer.train(
    [text for pair in train for text in pair], 300, character_coverage=1.0
)
batches = kt.data.Batches(train, tokenizer, batch_tokens=1024, num_buckets=1)

# %% [markdown]
# The model and its training are those of chapter 12a, too. This time the model translates 100 test sentences after
# each epoch, and we score them by BLEU.

# %%
model = kt.Transformer(tokenizer.vocab_size, num_layers=2, d_model=64, num_heads=4, d_ff=128, dropout=0.1)
model.compile(
    kt.training.Adam(kt.WarmupSchedule.from_peak(4e-3, 150, 64), beta_2=0.98, epsilon=1e-9),
    kt.MaskedCrossentropy(label_smoothing=0.1),
)
translator = kt.serving.Translator(model, tokenizer)
sources, references = map(list, zip(*test, strict=True))
bleu_by_epoch = []


def score(epoch, logs):
    """Translates test sentences, and keeps their BLEU."""
    translations = translator.translate(sources[:100])
    bleu_by_epoch.append(sacrebleu.corpus_bleu(translations, [references[:100]]).score)


model.fit(
    batches.dataset(),
    steps_per_epoch=batches.steps,
    epochs=8,
    shuffle=False,  # each epoch has an order of its own already
    callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=score)],
    verbose=0,
)
for epoch, bleu in enumerate(bleu_by_epoch, 1):
    print(f"{epoch:3}  BLEU {bleu:5.1f}")

# %% tags=["hide-input"]
plt.rcParams["font.family"] = font_families("this translator", "epoch")
figure, axes = plt.subplots(figsize=(7, 3.4), layout="constrained")
axes.axhspan(20, 40, color="#f1e3c8", label="near the paper's base model (27.3, 38.1)")
axes.plot(range(1, len(bleu_by_epoch) + 1), bleu_by_epoch, "o-", color="#d1603d", label="this translator")
axes.set(xlabel="epoch", ylabel="BLEU", ylim=(0, 102))
axes.legend()
plt.show()

# %% [markdown]
# **What to look at.** BLEU starts near 0 and rises within a few epochs, far above the band of the paper's results. Do
# not compare the two. A grammar allows one right translation, a language many. A BLEU says something about two
# systems only if both translated the same test set, and if it was split into words in the same way.

# %% [markdown]
# ## Greedy or beam?
#
# The model gives probabilities. A search turns them into a sentence. *Greedy* search takes the likeliest word in
# each step and never turns back. *Beam* search keeps a few hypotheses. A small table shows why that matters:

# %%
words = ["<pad>", "<unk>", "<s>", "</s>", "the", "a", "cat", "dog", "bird"]
after = {
    "<s>": {"the": 0.6, "a": 0.4},
    "the": {"cat": 0.4, "dog": 0.3, "bird": 0.3},
    "a": {"cat": 0.9, "dog": 0.1},
    **{noun: {"</s>": 1.0} for noun in ("cat", "dog", "bird")},
}
table = np.log([[after.get(a, {}).get(b, 1e-9) for b in words] for a in words]).astype("float32")


def step_of_table(tokens, cache, index):
    """The logits after each token."""
    return keras.ops.take(table, tokens, axis=0), cache


found = {}
for name, strategy in {"greedy": kt.Greedy(), "beam": kt.Beam(2, length_penalty=0.0)}.items():
    # decode searches over any function that gives the logits after a token.
    hypotheses = kt.decoding.decode(step_of_table, (), strategy, [2], kt.decoding.Search(limits=5))
    ids = np.array(hypotheses.tokens)[0, 0]
    found[name] = " ".join(words[i] for i in ids if i > 3), float(np.exp(hypotheses.scores[0, 0]))
    print(f"{name:6}  {found[name][0]}, {found[name][1]:.2f}")
assert found["greedy"][0] == "the cat" and abs(found["greedy"][1] - 0.24) < 1e-3
assert found["beam"][0] == "a cat" and abs(found["beam"][1] - 0.36) < 1e-3

# %% [markdown]
# Greedy search took "the", the likeliest first word, and ended with probability $0.6 \cdot 0.4 = 0.24$. Beam
# search kept "a" too, and found $0.4 \cdot 0.9 = 0.36$.
#
# Now the translator. We compare the log probabilities of both searches, and their BLEU.

# %%
rows = tokenizer.tokenize(sources).to_list()
longest = max(map(len, rows)) + 1
source_ids = np.array([[*row, 3, *[0] * (longest - len(row) - 1)] for row in rows], "int32")
results = {}
for name, strategy in {"greedy": kt.Greedy(), "beam": kt.Beam(4, length_penalty=0.0)}.items():
    hypotheses = model.generate(source_ids, strategy, max_length=40)
    ids = [
        row[:n]
        for row, n in zip(np.array(hypotheses.tokens)[:, 0], np.array(hypotheses.lengths)[:, 0], strict=True)
    ]
    texts = [text.decode() for text in tokenizer.detokenize([row.tolist() for row in ids]).numpy()]
    results[name] = np.array(hypotheses.scores)[:, 0], texts
    scores = kt.training.corpus_scores(texts, references)
    exact = np.mean([text == reference for text, reference in zip(texts, references, strict=True)])
    print(f"{name:6}  BLEU {scores['bleu']:.1f}  exact {exact:.0%}  {scores['bleu_signature']}")

gain = results["beam"][0] - results["greedy"][0]
print(f"The beam found a likelier sentence for {np.sum(gain > 1e-4)} of {len(test)} sources.")

row = sources.index("저는 학생입니다.")
several = model.generate(source_ids[row : row + 1], kt.Beam(4, length_penalty=0.0, n_best=3), max_length=40)
counts = np.array(several.lengths)[0]
best_texts = tokenizer.detokenize(
    [row[:n].tolist() for row, n in zip(np.array(several.tokens)[0], counts, strict=True)]
)
print("저는 학생입니다.")
for text, log_probability in zip(best_texts.numpy(), np.array(several.scores)[0], strict=True):
    print(f"  {np.exp(log_probability):6.1%}  {text.decode()}")
print(f"0.9 ** {counts[0]} = {0.9 ** counts[0]:.2f}")
assert kt.training.corpus_scores(results["beam"][1], references)["bleu"] > 50

# %% [markdown]
# Look at the three best translations of 저는 학생입니다. Even the likeliest has a probability far below 1. That is
# label smoothing: at each piece the model learns to leave about a tenth of the probability to other pieces. The last
# line multiplies 0.9 by itself, once for each piece. Compare it with the probability of the first translation. In this
# task the sentence of greedy search is nearly always the likeliest, so a beam has little to do. On real language a beam
# often raises BLEU a little. A likelier sentence is not always a better one: a very wide beam finds short sentences to
# which the model gives too much probability (Koehn and Knowles, 2017). That is what the length penalty is for (its
# formula is in chapter 10).

# %% [markdown]
# ## Exercise
#
# ### Five minutes
#
# 1. The reference is "She does not drink coffee every day". One translation leaves out "She". Another one says "every
#    day" twice at its end. Compute the BLEU of both by hand. Which fault costs more?
# 2. In the small table, let "a" follow `<s>` with probability $a$ and "the" with $1 - a$. Below which $a$ is "a
#    cat" no longer the answer of a beam of 2?

# %% tags=["hide-cell"]
# 1. Without "She" all precisions are 1, and the brevity penalty e^(1 - 7/6) leaves 84.6. With two words more the
# precisions are 7/9, 6/8, 5/7 and 4/6. Their product is (5 * 4) / (9 * 8), its fourth root 0.726. So two words too
# many cost 27, and one word too few 15.
one_missing = bleu_by_hand("does not drink coffee every day", reference)
np.testing.assert_allclose(one_missing[0], 1)
np.testing.assert_allclose(one_missing[2], 100 * np.exp(1 - 7 / 6))
twice = bleu_by_hand(f"{reference} every day", reference)
np.testing.assert_allclose(twice[0], [7 / 9, 6 / 8, 5 / 7, 4 / 6])
np.testing.assert_allclose(twice[2], 100 * (5 * 4 / (9 * 8)) ** 0.25)
print(f"one word too few: {one_missing[2]:.1f}, two words too many: {twice[2]:.1f}")

# 2. "a cat" has the probability 0.9 a, and "the cat" 0.4 (1 - a). They are equal at a = 4/13, about 0.308. The beam
# keeps both first words, so it finds the likelier sentence on both sides of this point.
for share, wanted in ((0.30, "the cat"), (0.32, "a cat")):
    after["<s>"] = {"the": 1 - share, "a": share}
    table = np.log([[after.get(a, {}).get(b, 1e-9) for b in words] for a in words]).astype("float32")
    hypotheses = kt.decoding.decode(
        step_of_table, (), kt.Beam(2, length_penalty=0.0), [2], kt.decoding.Search(limits=5)
    )
    text = " ".join(words[i] for i in np.array(hypotheses.tokens)[0, 0] if i > 3)
    print(f"{share:.2f}: {text}")
    assert text == wanted

# %% [markdown]
# ### An hour
#
# Write `beam_search(next_word, width, start, end, longest)`. `next_word(tokens)` returns the log probability of each
# word after the tuple `tokens`, which begins with `start`. Keep the `width` likeliest hypotheses. One that ends with
# `end` stays as it is. Stop after `longest` words. `end` counts as a word and is part of the answer. A hypothesis of
# `longest` words need not end. Return the tokens of the best one, without `start`, and its log probability. There is
# no length penalty.
#
# Write it in a file `answer.py`, with NumPy alone. `python course/check.py 12b answer.py` says which of its
# properties hold. No solution is published.
#
# ### A project
#
# Is a difference of BLEU real? Train the translator of this chapter with two seeds. Draw 1,000 samples of the test
# sentences, with replacement, score both systems on each, and give the interval of the difference. How many test
# sentences do you need before the better seed shows?

# %% [markdown]
# ## What to read next
#
# - Vaswani et al., 2017, ["Attention Is All You Need"](https://arxiv.org/abs/1706.03762), section 6.1 (beam of 4,
#   length penalty 0.6)
# - Post, 2018, ["A Call for Clarity in Reporting BLEU Scores"](https://arxiv.org/abs/1804.08771)
# - Koehn and Knowles, 2017, ["Six Challenges for Neural Machine Translation"](https://arxiv.org/abs/1706.03872),
#   section 3.6: wide beams
# - Documents of this library: *Decoding* (strategies and what they cost)
# - Next chapter: **13. Reading attention**
