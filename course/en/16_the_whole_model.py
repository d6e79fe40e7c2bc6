# %% [markdown]
# # 16. The whole model on one page
#
# After this chapter you have read a complete Transformer in plain Keras, about 110 lines of code from token ids to a
# translation. You train it. You copy its weights into the library and get the same logits. You count its parameters
# by hand, and compare the count of the paper's base model with the 65 million of the paper.
#
# **Before:** chapters 6 to 10 (the parts), chapter 12a (training). The training in this chapter takes about 40
# seconds on two cores.

# %% [markdown]
# ![The Transformer](../../docs/images/transformer.svg)
#
# The whole model. Each box of this picture is a few lines of the listing below.

# %% [markdown]
# ## The listing
#
# This is the Transformer of 2017 with all of its parts. Keras gives the dense layer, the embedding, the layer
# normalisation and the dropout. All else is written out, and nothing comes from this library. Start at
# `Transformer.call`: it encodes the source, then decodes the target. From there follow one call into the next.

# %%
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

# %%
import keras
import numpy as np
from keras import layers, ops

PAD, START, END = 0, 1, 2


def position_table(length, d_model):
    """Sines and cosines in turn, (length, d_model): section 3.5."""
    place = ops.arange(length, dtype="float32")[:, None]
    angle = place / 10000.0 ** (ops.arange(0, d_model, 2, dtype="float32") / d_model)
    return ops.reshape(ops.stack([ops.sin(angle), ops.cos(angle)], axis=-1), (length, d_model))


def padding_mask(ids):
    """True where a key is a real token, (batch, 1, 1, length)."""
    return (ids != PAD)[:, None, None, :]


def look_ahead_mask(length):
    """True where a key does not stand after its query, (length, length)."""
    return ops.arange(length)[:, None] >= ops.arange(length)[None, :]


class Attention(layers.Layer):
    """Scaled dot-product attention in several heads: section 3.2."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.d_model, self.num_heads = d_model, num_heads
        self.query, self.key, self.value = (layers.Dense(d_model) for _ in range(3))
        self.attention_output = layers.Dense(d_model)

    def split(self, x):
        """(batch, length, d_model) becomes (batch, num_heads, length, key_dim)."""
        x = ops.reshape(x, (-1, ops.shape(x)[1], self.num_heads, self.d_model // self.num_heads))
        return ops.transpose(x, (0, 2, 1, 3))

    def call(self, x, memory, mask):
        query, key = self.split(self.query(x)), self.split(self.key(memory))
        value = self.split(self.value(memory))
        scores = query @ ops.transpose(key, (0, 1, 3, 2)) / (self.d_model / self.num_heads) ** 0.5
        weights = ops.softmax(ops.where(mask, scores, -1e9))
        mixture = ops.transpose(weights @ value, (0, 2, 1, 3))
        return self.attention_output(ops.reshape(mixture, (-1, ops.shape(x)[1], self.d_model)))


class FeedForward(layers.Layer):
    """Two dense layers, the same at each position: section 3.3."""

    def __init__(self, d_model, d_ff):
        super().__init__()
        self.inner, self.outer = layers.Dense(d_ff, activation="relu"), layers.Dense(d_model)

    def call(self, x):
        return self.outer(self.inner(x))


class AddAndNorm(layers.Layer):
    """Adds the output of a sublayer to its input, then normalises: sections 3.1 and 5.4."""

    def __init__(self, dropout):
        super().__init__()
        self.drop, self.norm = layers.Dropout(dropout), layers.LayerNormalization(epsilon=1e-6)

    def call(self, x, output):
        return self.norm(x + self.drop(output))


class EncoderLayer(layers.Layer):
    """Self-attention, then the feed-forward network."""

    def __init__(self, d_model, num_heads, d_ff, dropout):
        super().__init__()
        self.self_attention = Attention(d_model, num_heads)
        self.self_attention_residual = AddAndNorm(dropout)
        self.feed_forward = FeedForward(d_model, d_ff)
        self.feed_forward_residual = AddAndNorm(dropout)

    def call(self, x, mask):
        x = self.self_attention_residual(x, self.self_attention(x, x, mask))
        return self.feed_forward_residual(x, self.feed_forward(x))


class DecoderLayer(EncoderLayer):
    """The same, with cross-attention to the memory between the two."""

    def __init__(self, d_model, num_heads, d_ff, dropout):
        super().__init__(d_model, num_heads, d_ff, dropout)
        self.cross_attention = Attention(d_model, num_heads)
        self.cross_attention_residual = AddAndNorm(dropout)

    def call(self, x, memory, mask, memory_mask):
        x = self.self_attention_residual(x, self.self_attention(x, x, mask))
        x = self.cross_attention_residual(x, self.cross_attention(x, memory, memory_mask))
        return self.feed_forward_residual(x, self.feed_forward(x))


class Transformer(keras.Model):
    """Source ids (batch, source_len) and target ids (batch, target_len) in, logits (batch, target_len, words) out."""

    def __init__(self, vocab_size, num_layers, d_model, num_heads, d_ff, dropout=0.1):
        super().__init__()
        self.d_model = d_model
        start = keras.initializers.RandomNormal(stddev=d_model**-0.5)
        self.embedding = layers.Embedding(vocab_size, d_model, start)
        self.drop = layers.Dropout(dropout)
        sizes = d_model, num_heads, d_ff, dropout
        self.encoder = [EncoderLayer(*sizes) for _ in range(num_layers)]
        self.decoder = [DecoderLayer(*sizes) for _ in range(num_layers)]

    def embed(self, ids):
        positions = position_table(ops.shape(ids)[1], self.d_model)
        return self.drop(self.embedding(ids) * self.d_model**0.5 + positions)

    def encode(self, source):
        x, mask = self.embed(source), padding_mask(source)
        for layer in self.encoder:
            x = layer(x, mask)
        return x, mask

    def decode(self, target, memory, memory_mask):
        x = self.embed(target)
        mask = ops.logical_and(padding_mask(target), look_ahead_mask(ops.shape(target)[1]))
        for layer in self.decoder:
            x = layer(x, memory, mask, memory_mask)
        return x @ ops.transpose(
            self.embedding.embeddings
        )  # the output is tied to the embedding: section 3.4

    def call(self, inputs):
        return self.decode(inputs["target"], *self.encode(inputs["source"]))


def loss(labels, logits):
    """The mean cross-entropy of the real tokens. The padding is left out."""
    losses = ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    real = ops.cast(labels != PAD, losses.dtype)
    return ops.sum(losses * real) / ops.sum(real)


def translate(model, source, max_length=12):
    """Greedy search: writes the likeliest token, until each row has its end. Returns (batch, max_length - 1) ids."""
    memory = model.encode(source)
    target = np.full((len(source), max_length), PAD, "int32")
    target[:, 0] = START
    for place in range(1, max_length):
        logits = model.decode(target, *memory)[:, place - 1]
        target[:, place] = ops.convert_to_numpy(ops.argmax(logits, axis=-1))
        if (target == END).any(axis=1).all():
            break
    return target[:, 1:]


# %% [markdown]
# | in the listing | chapter | paper |
# | --- | --- | --- |
# | `position_table` | 8 | 3.5 |
# | `padding_mask`, `look_ahead_mask` | 7 | 3.2.3 |
# | `Attention` | 4 to 6 | 3.2 |
# | `FeedForward`, `AddAndNorm`, `EncoderLayer`, `DecoderLayer` | 9 | 3.1, 3.3, 5.4 |
# | `Transformer`: embeddings, positions, tied output | 10 | 3.4 |
# | `loss`, without label smoothing | 12a | 5.4 |
# | `translate` | 10, 12b | |
#
# Four places are easy to get wrong:
#
# - The embeddings are multiplied by $\sqrt{d_{model}}$ *before* the positions are added.
# - The scores are divided by the root of the width of *one head*, not of the model.
# - The softmax runs over the keys, the last axis.
# - The loss divides by the number of *real* tokens. `ops.mean` would divide by all positions, so a batch with much
#   padding would have a smaller loss.

# %% [markdown]
# ## Sentences to translate
#
# The sentences are those of the grammar of chapter 12a: polite Korean, and its English. This time a token is a whole
# word, so a Python dictionary is enough for a tokenizer. Id 0 is the padding, 1 starts a translation, 2 ends it.

# %%
import itertools
import random

keras.utils.set_random_seed(16)

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
ADVERBS = ("매일=every day", "어제=yesterday", "내일=tomorrow")
NEGATIONS = ("않습니다", "않았습니다", "않을 것입니다")


def entries(text):
    """Returns the (Korean, English) entries of a table."""
    return [entry.split("=") for entry in text.split(", ")]


def sentences(who, verb, thing):
    """Yields the 12 pairs of a subject, a verb and an object: 3 tenses, with an adverb or not, negated or not."""
    forms, _ = VERBS[verb]
    stem, *forms = forms.split("/")
    base, third, past = verb.split()
    plural = who[1] in ("I", "we", "they")
    helpers = ("do" if plural else "does", "did", "will")
    plain = (base if plural else third, past, f"will {base}")
    for tense, said, negative in itertools.product(range(3), (False, True), (False, True)):
        when, adverb = entries(ADVERBS[tense])[0] if said else ("", "")
        action = f"{stem}지 {NEGATIONS[tense]}" if negative else forms[tense]
        done = f"{helpers[tense]} not {base}" if negative else plain[tense]
        yield f"{who[0]} {when} {thing[0]} {action}".split(), f"{who[1]} {done} {thing[1]} {adverb}".split()


facts = [
    (who, verb, thing)
    for who in entries(SUBJECTS)
    for verb, (_, things) in VERBS.items()
    for thing in entries(things)
]
random.Random(16).shuffle(facts)
withheld, known = facts[: len(facts) // 10], facts[len(facts) // 10 :]
train, test = ([pair for fact in part for pair in sentences(*fact)] for part in (known, withheld))
words = ["<pad>", "<s>", "</s>", *sorted({word for pair in train for side in pair for word in side})]
number = {word: i for i, word in enumerate(words)}
print(f"{len(train):,} pairs to train on, {len(test)} to test with, {len(words)} words")
print(" ".join(train[0][0]), "=", " ".join(train[0][1]))
assert not {str(pair) for pair in train} & {str(pair) for pair in test}


def ids_of(rows):
    """Returns the ids of rows of words, (rows, longest row), filled up with 0."""
    longest = max(map(len, rows))
    return np.array([[number[word] for word in row] + [PAD] * (longest - len(row)) for row in rows], "int32")


source = ids_of([korean for korean, _ in train])
target = ids_of([["<s>", *english] for _, english in train])  # what the decoder reads
labels = ids_of([[*english, "</s>"] for _, english in train])  # what it should answer
for name, row in (("source", source), ("target", target), ("labels", labels)):
    print(name, row[0])

# %% [markdown]
# ## Train it
#
# Two layers on each side, $d_{model} = 64$, four heads, $d_{ff} = 128$. Adam has the paper's $\beta_2$ and
# $\varepsilon$. A model as small as this needs no warm-up, so the learning rate stays 0.002. After each epoch the model
# translates one sentence that it has never seen.

# %%
sizes = {"num_layers": 2, "d_model": 64, "num_heads": 4, "d_ff": 128}
model = Transformer(len(words), **sizes)
model.compile(keras.optimizers.Adam(0.002, beta_2=0.98, epsilon=1e-9), loss, jit_compile=False)


def text_of(row):
    """Returns the words before the end."""
    return " ".join(words[i] for i in itertools.takewhile(lambda i: i != END, row))


unseen = ids_of([korean for korean, _ in test])
references = [" ".join(english) for _, english in test]
print(" ".join(test[0][0]), "=", references[0])
losses = []
for epoch in range(1, 6):
    history = model.fit({"source": source, "target": target}, labels, batch_size=64, verbose=0)
    losses += history.history["loss"]
    print(f"{epoch}  loss {losses[-1]:.3f}  {text_of(translate(model, unseen[:1])[0])}")

# %% [markdown]
# Now all sentences of the test. The model has seen each of their words, and none of the sentences: the subject, the
# verb and the object of a test sentence never came together in the training.

# %%
translations = [text_of(row) for row in translate(model, unseen)]
exact = np.mean([a == b for a, b in zip(translations, references, strict=True)])
print(f"{exact:.0%} of {len(test)} translations are right, word for word")
for i in range(0, 60, 12):
    print(f"  {' '.join(test[i][0])}  =  {translations[i]}")
assert exact > 0.8

# %% [markdown]
# ## The same numbers in the library
#
# `kt.Transformer` computes the same function. We make one of the same sizes and copy the weights, part by part. The
# listing names its parts as the library does, so the copy is a loop. Only the shapes of the attention differ: Keras
# keeps the heads on an axis of their own, `(d_model, num_heads, key_dim)`, and the listing cuts them out of `(d_model,
# d_model)`. The numbers lie in the same order, so `reshape` is enough.

# %%
import matplotlib.pyplot as plt

import keras_transformer as kt
from keras_transformer.fonts import font_families


def copy_weights(plain, other):
    """Copies the weights of the listing's model into a `kt.Transformer` of the same sizes."""
    pairs = [(plain.embedding, other.source.tokens)]
    other_layers = [*other.encoder.layers, *other.decoder.layers]
    for layer, other_layer in zip([*plain.encoder, *plain.decoder], other_layers, strict=True):
        for name in ("self_attention", "cross_attention", "feed_forward"):
            if hasattr(layer, name):  # an encoder layer has no cross-attention
                for part in (name, f"{name}_residual"):
                    pairs.append((getattr(layer, part), getattr(other_layer, part)))
    for part, other_part in pairs:
        for weight, other_weight in zip(part.weights, other_part.weights, strict=True):
            other_weight.assign(ops.reshape(weight, other_weight.shape))


# %%
library = kt.Transformer(len(words), **sizes, pad_id=PAD, bos_id=START, eos_id=END)
copy_weights(model, library)
batch = {"source": source[:200], "target": target[:200]}
real = labels[:200] != PAD
logits, library_logits = (ops.convert_to_numpy(net(batch))[real] for net in (model, library))
largest = np.abs(logits).max()
difference = np.abs(logits - library_logits).max()
print(f"{real.sum():,} positions, logits up to {largest:.1f}, largest difference {difference:.1e}")
assert difference < 1e-5 * largest

# %% [markdown]
# The difference is rounding: float32 sums in another order. We compared the real positions only. At the padding the two
# models write different numbers, and nobody reads them: the loss leaves them out, and the masks hide them.
#
# The library's greedy search reads each token once, because it has a cache (chapter 10). It writes the same sentences.

# %%
found = library.generate(unseen, kt.Greedy(), max_length=11)
assert [text_of(row) for row in np.array(found.tokens)[:, 0]] == translations
print(f"{len(translations)} translations are the same")

# %% [markdown]
# ## Count the parameters
#
# Now with pencil and paper. $V$ is the number of words, $N$ the number of layers on each side, and $d$
# is $d_{model}$.
#
# | part | parameters | why |
# | --- | --- | --- |
# | embedding | $V d$ | one vector for each word; source, target and output share it |
# | one attention | $4 (d^2 + d)$ | queries, keys, values, output: a $d \times d$ matrix and a bias each |
# | one feed-forward network | $2\, d\, d_{ff} + d_{ff} + d$ | into the wide layer and back, two biases |
# | one normalisation | $2 d$ | $\gamma$ and $\beta$ |
# | encoder layer | 1 attention, 1 network, 2 normalisations | |
# | decoder layer | 2 attentions, 1 network, 3 normalisations | |
#
# The number of heads does not occur: eight heads of 64 are as many columns as one head of 512. The positions do not
# occur, because sines are computed, not learned. The length of a sentence does not occur either.


# %%
def counted(V, N, d, d_ff):
    """Returns the number of parameters of each part."""
    attention, network, norm = 4 * (d * d + d), 2 * d * d_ff + d_ff + d, 2 * d
    return {
        "embedding": V * d,
        "self-attention": 2 * N * attention,
        "cross-attention": N * attention,
        "feed-forward": 2 * N * network,
        "normalisation": 5 * N * norm,
    }


small = counted(len(words), 2, 64, 128)
print(f"this model: {sum(small.values()):,}")
assert sum(small.values()) == model.count_params() == library.count_params()

base = counted(37_000, 6, 512, 2048)
for part, count in base.items():
    print(f"{part:>16} {count:12,}")
print(f"{'base':>16} {sum(base.values()):12,}")
assert sum(base.values()) == kt.Transformer.from_preset("base", 37_000).count_params()

# %% tags=["hide-input"]
labels_of_axes = ("epoch", "loss, nats per token", "share of the parameters", "this model", "base")
plt.rcParams["font.family"] = font_families(*labels_of_axes, *small)
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.4), layout="constrained", width_ratios=(1, 2))
left.plot(range(1, 6), losses, "o-", color="#3a6ea5")
left.set(xlabel=labels_of_axes[0], ylabel=labels_of_axes[1], ylim=(0, None))
colours = ("#d1603d", "#3a6ea5", "#7aa6d1", "#8a9a5b", "#707070")
for row, parts in enumerate((small, base)):
    start = 0
    for colour, (part, count) in zip(colours, parts.items(), strict=True):
        share = count / sum(parts.values())
        right.barh(row, share, left=start, color=colour, label=None if row else part)
        start += share
right.set(xlabel=labels_of_axes[2], xlim=(0, 1), yticks=(0, 1), yticklabels=labels_of_axes[3:])
right.legend(loc="upper center", bbox_to_anchor=(0.5, 1.2), ncols=5, frameon=False, fontsize=9)
plt.show()

# %% [markdown]
# **What to look at.** On the left, four epochs are enough. On the right, the feed-forward networks of `base` hold 40 %
# of all parameters, and the embedding 30 %. In the small model the attention layers hold more, because its $d_{ff}$ is
# only twice $d_{model}$, not four times.
#
# We count 63 million for `base`. Table 3 of the paper says 65 million. All other sizes are in the table, so the
# size of the vocabulary is the first thing to check. Section 5.1 gives it as "about 37000 tokens". The first
# exercise looks for the size that fits.

# %% [markdown]
# ## Exercise
#
# ### Five minutes
#
# 1. Table 3 of the paper gives 65 million parameters for `base` and 213 million for `big` ($d_{model} = 1024$,
#    $d_{ff} = 4096$), rounded to a million. Which sizes of the vocabulary give each? (`counted(0, ...)` counts all
#    but the embedding.) Does one size give both? The solution goes through the other rows, too.
# 2. Take the look-ahead mask out of `decode` and train again (a few lines, and another training of under a minute).
#    Predict first: does the loss still fall? Are the translations still right?
# 3. Does padding change a sentence? Add ten columns of 0 to the source, and compare the logits.

# %% tags=["hide-cell"]
# 1. The numbers of the table are rounded to a million, so each of them allows a range of vocabularies. About 41,000
#    tokens fit all rows but `big`, which needs about 36,000. So no single vocabulary fits the whole table, and 37,000
#    fits none of its rows. The paper does not say why. The count of the layers is right: the rows for 2, 4, 6 and 8
#    layers agree with one another.
table = {
    (6, 512, 2048): 65,
    (2, 512, 2048): 36,
    (4, 512, 2048): 50,
    (8, 512, 2048): 80,
    (6, 256, 2048): 28,
    (6, 1024, 2048): 168,
    (6, 512, 1024): 53,
    (6, 512, 4096): 90,
    (6, 1024, 4096): 213,
}
vocabularies = np.arange(30_000, 45_000)
fitting = {
    row: [V for V in vocabularies if round(sum(counted(V, *row).values()) / 1e6) == millions]
    for row, millions in table.items()
}
for row, fit in fitting.items():
    print(row, f"{fit[0]:,} to {fit[-1]:,}")
*others, big = (set(fit) for fit in fitting.values())
shared = set.intersection(*others)
print(f"all but big: {min(shared):,} to {max(shared):,}")
assert 40_900 < min(shared) <= max(shared) < 41_200 and max(big) < 37_000


# 2. The loss falls to almost 0, as before, and hardly any translation is right. In training each position reads the
#    word that it should answer: it is the next one of the target. When the model writes, there is no next word to read
#    yet. So the loss alone does not show a wrong mask. Translations do.
class Unmasked(Transformer):
    def decode(self, target, memory, memory_mask):
        x, mask = self.embed(target), padding_mask(target)
        for layer in self.decoder:
            x = layer(x, memory, mask, memory_mask)
        return x @ ops.transpose(self.embedding.embeddings)


unmasked = Unmasked(len(words), **sizes)
unmasked.compile(keras.optimizers.Adam(0.002, beta_2=0.98, epsilon=1e-9), loss, jit_compile=False)
history = unmasked.fit({"source": source, "target": target}, labels, batch_size=64, epochs=5, verbose=0)
guesses = [text_of(row) for row in translate(unmasked, unseen)]
found = np.mean([a == b for a, b in zip(guesses, references, strict=True)])
print(f"loss {history.history['loss'][-1]:.3f}, {found:.0%} of the translations are right: {guesses[0]}")
assert found < 0.1 < exact

# 3. No. The mask gives each padded key a score of -1e9, so its weight is exactly 0.
longer = {"source": np.pad(batch["source"], ((0, 0), (0, 10))), "target": batch["target"]}
padded = ops.convert_to_numpy(model(longer))[real]
print(f"largest difference {np.abs(padded - logits).max():.1e}")
assert np.abs(padded - logits).max() < 1e-5 * largest

# %% [markdown]
# ### An hour
#
# Write `transformer(embedding, encoder, decoder, source, target, num_heads)`: the logits of one pair of sentences,
# `(target_len, words)`, in NumPy. `encoder` and `decoder` are lists with a dictionary for each layer. Their keys are
# those of chapter 9, and a decoder layer has the same ones with `cross_attention`, too. Id 0 is padding, in the
# source alone. Start from your functions of chapters 6 and 9: attention now needs biases and a mask, too. The
# positions are the table of sines of chapter 8, not its rotation. `embedding` is `(words, d_model)`.
#
# Write it in a file `answer.py`, with NumPy alone. `python course/check.py 16 answer.py` says which of its properties
# hold. No solution is published.
#
# ### A project
#
# Change one thing of the listing that the paper does not explain: the $\sqrt{d_{model}}$ of the embedding, the tied
# output, ReLU, the epsilon, or the place of the normalisation. Train with and without it, three seeds each, and say
# whether the difference is larger than that of two seeds.

# %% [markdown]
# ## What to read next
#
# - Vaswani et al., 2017, ["Attention Is All You Need"](https://arxiv.org/abs/1706.03762): now you can read all of it.
#   Table 3 measures what each size is worth.
# - Rush, 2018, ["The Annotated Transformer"](https://nlp.seas.harvard.edu/2018/04/03/attention.html): the paper line by
#   line, in PyTorch
# - Karpathy, [nanoGPT](https://github.com/karpathy/nanoGPT): a language model in one file, the decoder alone
# - In this library: *Building blocks* (what replaces which part), *Training* (the same model on a real corpus)
# - This is the last chapter. Take a model of your own, and ask it the questions of this course.
