# %% [markdown]
# # 14. What came after: BERT, GPT, vision
#
# After this chapter you can say how three famous families follow from one layer: BERT reads, GPT writes, the Vision
# Transformer sees. You add up BERT's input by hand, train a small GPT and a small Vision Transformer, and see that the
# layers of the first two differ only by a mask.
#
# **Before:** chapters 7 (masks), 8 (positions) and 9 (the block).

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

keras.utils.set_random_seed(14)

# %% [markdown]
# ## Which mask makes which model
#
# The paper's model has an encoder and a decoder. Its successors keep one half, or both:
#
# | model | keeps | a token sees | learns by | good for |
# | --- | --- | --- | --- | --- |
# | BERT (2018) | the encoder | all tokens | guessing hidden words | understanding a text |
# | GPT (2018) | the decoder, without cross-attention | itself and the past | guessing the next word | writing |
# | T5, BART (2019) | both | encoder: all; decoder: the past and the source | repairing a text | text in, text out |
# | Vision Transformer (2020) | the encoder | all patches of an image | naming the image | images |
#
# The layers are the same, but for details such as the place of the normalisation. The mask makes the difference.

# %%
tokens = ["my", "dog", "is", "cute"]
everything = np.ones((4, 4), bool)
past = kt.masks.look_ahead_mask(4)
kt.plots.masks(
    {"BERT: encoder": everything, "GPT: decoder": past},
    tokens,
    xlabel="key: attended to",
    ylabel="query: attends",
)

# %% [markdown]
# **What to look at.** The row of *dog*: in BERT it sees *is* and *cute*, in GPT only *my* and itself.
#
# Is the mask really all? We take an encoder layer and a decoder layer without cross-attention, and give both the
# same weights. With a look-ahead mask the encoder layer computes what the decoder layer computes.

# %%
x = np.random.default_rng(0).normal(size=(1, 4, 8)).astype("float32")
encoder_layer = kt.layers.EncoderLayer(num_heads=2, d_ff=16, dropout=0.0)
decoder_layer = kt.layers.DecoderLayer(num_heads=2, d_ff=16, dropout=0.0)
encoder_layer(x)
decoder_layer(x)  # without a memory: no cross-attention
decoder_layer.set_weights(encoder_layer.get_weights())
np.testing.assert_allclose(encoder_layer(x, attention_mask=past), decoder_layer(x), atol=1e-5)
assert np.abs(encoder_layer(x) - decoder_layer(x)).max() > 0.01  # without the mask they differ

# %% [markdown]
# ## BERT's input is a sum of three embeddings
#
# BERT reads one text or two. Two texts go into one row: `[CLS]`, the first text A, `[SEP]`, the second text B,
# `[SEP]`. The tokenizer splits a word that it does not know as a whole: *playing* becomes `play` and `##ing`,
# where `##` means "goes on without a space".

# %%
pieces = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "my",
    "dog",
    "is",
    "cute",
    "he",
    "likes",
    "play",
    "##ing",
]
tokenizer = kt.text.WordPieceTokenizer(pieces)
packed = kt.text.pack(tokenizer, ["My dog is cute"], ["He likes playing"])
token_ids, segment_ids = (packed[name].numpy() for name in ("token_ids", "segment_ids"))
tokens = tokenizer.pieces(token_ids[0])
print(" ".join(tokens))
print(" ".join("AB"[i] for i in segment_ids[0]))
assert " ".join(tokens) == "[CLS] my dog is cute [SEP] he likes play ##ing [SEP]"
assert segment_ids[0].tolist() == [0] * 6 + [1] * 5

# %% [markdown]
# Each token gets three vectors: one for its piece, one for its segment (A or B), one for its position. They are added,
# and then normalised (Devlin et al., 2019, figure 2). Attention alone could not tell the two texts apart, and not the
# order of the words. We look the three vectors up by hand and compare with the model. (BERT's feed-forward network has
# GELU, a similar function, in place of ReLU.)


# %%
def small_bert(**options):
    """BERT with two small layers."""
    layers = kt.layers.Encoder(2, num_heads=2, d_ff=32, activation="gelu", layer_norm_epsilon=1e-12)
    embeddings = kt.layers.Embeddings(
        len(pieces),
        16,
        kt.layers.LearnedPositions(32),
        segments=kt.layers.SegmentEmbedding(2),
        norm=kt.layers.LayerNormalization(epsilon=1e-12),
    )
    return kt.models.EncoderModel(embeddings, layers, **options)


bert = small_bert()
token_table = bert.embeddings.tokens.get_weights()[0]
segment_table = bert.embeddings.segments.get_weights()[0]
position_table = bert.embeddings.positions.get_weights()[0]

parts = {
    "token": token_table[token_ids[0]],
    "segment": segment_table[segment_ids[0]],
    "position": position_table[: len(tokens)],
}
total = sum(parts.values())
centred = total - total.mean(-1, keepdims=True)
normalised = centred / np.sqrt(centred.var(-1, keepdims=True) + 1e-12)  # gamma is 1, beta 0
np.testing.assert_allclose(bert.encoder(normalised[None]), bert(packed), atol=1e-4)

# %% tags=["hide-input"]
plt.rcParams["font.family"] = font_families("".join(parts), "sum")
figure, panels = plt.subplots(1, 4, figsize=(11, 3.6), sharey=True, layout="constrained")
for axes, (name, table) in zip(panels, {**parts, "sum": total}.items(), strict=True):
    image = axes.imshow(table / np.abs(table).max(), cmap="RdBu_r", vmin=-1, vmax=1, aspect="auto")
    axes.set(title=name, xlabel="channel")
panels[0].set_yticks(range(len(tokens)), tokens)
figure.colorbar(image, ax=panels, label="value, largest = 1")
plt.show()

# %% [markdown]
# **What to look at.** The two rows of `[SEP]` are equal in the first picture, because it is the same piece. The
# second picture has only two different rows, A and B. In the sum no two rows are equal.

# %% [markdown]
# ## One encoder, many tasks
#
# BERT is trained once on plain text: it guesses hidden words (as the guesser of chapter 13 did), and whether text B
# follows text A. This is *pre-training*. Then a small *head* is put on it for a task, and the whole model is trained a
# little more. This is *fine-tuning*. (Here a head is an output layer on top of a model, not a head of attention.) The
# state of `[CLS]` serves as the vector of the text.
#
# | task | input | head | output |
# | --- | --- | --- | --- |
# | classification: is the review good? | A | `ClassificationHead(2)` | one logit per class |
# | entailment: does B follow from A? | A and B | `ClassificationHead(3)` | yes, no, perhaps |
# | similarity: how near are A and B? | A and B | `ClassificationHead(1)` | one number |
# | multiple choice: which B continues A? | A with each B | `MultipleChoiceHead()` | one logit per choice |

# %%
one_text = kt.text.pack(tokenizer, ["My dog is cute"])
choices = {
    name: np.stack([ids, ids], axis=1)
    for name, ids in (("token_ids", token_ids), ("segment_ids", segment_ids))
}
tasks = {
    "classification": (kt.models.ClassificationHead(2), one_text, (1, 2)),
    "entailment": (kt.models.ClassificationHead(3), packed, (1, 3)),
    "similarity": (kt.models.ClassificationHead(1), packed, (1, 1)),
    "multiple choice": (kt.models.MultipleChoiceHead(), choices, (1, 2)),
}
for name, (head, inputs, shape) in tasks.items():
    # The same encoder's weights under another head. The Pooler applies a dense layer to the state of [CLS].
    model = bert.with_head(head, kt.models.Pooler())
    assert tuple(model(inputs).shape) == shape
    print(f"{name:16}{shape}")

# %% [markdown]
# ## GPT: the next word
#
# GPT does not hide words. It guesses the next word, again and again. So it needs no labels, only text. `LanguageModel`
# is a decoder without a memory.
#
# Our text is about the agreement of subject and verb: "the dogs that chased the cat are tired". The verb must agree
# with *dogs*, not with the nearer *cat*. A model that looks at the last words only gets that wrong in half of the
# cases. We train on most sentences. The test has the other sentences: their two nouns never occur in this order in
# training.

# %%
NOUNS = ("dog", "cat", "bird", "horse", "child", "student", "doctor", "singer")
PLURALS = ("dogs", "cats", "birds", "horses", "children", "students", "doctors", "singers")
lines, held_out = [], []
chooser = random.Random(14)
for first, second in itertools.permutations(range(len(NOUNS)), 2):
    side = held_out if chooser.random() < 0.15 else lines
    for subjects, objects in itertools.product((NOUNS, PLURALS), repeat=2):
        be = "is" if subjects is NOUNS else "are"
        for verb, state in itertools.product(("chased", "saw", "helped"), ("tired", "happy")):
            side.append(f"the {subjects[first]} that {verb} the {objects[second]} {be} {state}".split())
chooser.shuffle(lines)
words = ["<pad>", "<unk>", "<s>", "</s>", *sorted({word for line in lines for word in line})]
number = {word: i for i, word in enumerate(words)}
texts = np.array([[2, *(number[word] for word in line), 3] for line in lines], "int32")
print(len(lines), len(held_out), " ".join(lines[0]))

gpt = kt.models.LanguageModel(
    kt.layers.Embeddings(len(words), 32, kt.layers.LearnedPositions(16), dropout=0.0),
    kt.layers.Decoder(2, num_heads=4, d_ff=64, dropout=0.0),
)
gpt.compile(keras.optimizers.Adam(3e-3), kt.MaskedCrossentropy())
# The label of each token is the next token.
history = gpt.fit(texts[:, :-1], texts[:, 1:], batch_size=32, epochs=6, verbose=0)

# %% [markdown]
# A prompt goes in, and `generate` goes on with it.

# %%
prompts = np.array([[2, *(number[word] for word in line[:6])] for line in held_out])
verbs = np.array([line[6] for line in held_out])
found = np.array(words)[np.array(gpt.generate(prompts, max_length=2).tokens)[:, 0, 0]]
mixed = np.array([(line[1] in NOUNS) != (line[5] in NOUNS) for line in held_out])
print(" ".join(held_out[0][:6]), "->", found[0])
print(f"right: {np.mean(found == verbs):.0%}")
print(f"right where the nearer noun misleads: {np.mean((found == verbs)[mixed]):.0%}")
assert np.mean((found == verbs)[mixed]) > 0.75

sentence = np.array([[2, *(number[word] for word in held_out[0])]])
other = sentence.copy()
other[0, 5:] = number["happy"]  # another future
np.testing.assert_allclose(gpt(sentence)[:, :5], gpt(other)[:, :5], atol=1e-5)  # changes nothing before it

# %% [markdown]
# The last check is the look-ahead mask at work: no token depends on its future. So one pass over a text trains
# all its places at once.
#
# ## Sampling and temperature
#
# The likeliest word is right where there is one right answer. A story, or an answer in a chat, would be the same each
# time, and dull. So language models *draw* the next word with its probability. The logits are divided by a
# *temperature* $T$ before the softmax:
#
# $$p_i = \text{softmax}(z / T)_i$$
#
# $1 / T$ is the sharpness of chapter 3. With $T$ below 1 the likely words get likelier, above 1 the unlikely ones come
# up; near 0 it is greedy search. *Top-k* draws from the $k$ likeliest words only, *top-p* from the fewest words that
# hold the probability $p$ together (Holtzman et al., 2020). Both cut off the long tail of words that are each unlikely,
# but together likely enough to spoil a text.

# %%
prompt = np.array([[2, *(number[word] for word in ["the", "dogs", "that"])]])
logits = np.array(gpt(prompt))[0, -1]
shares = {}
for temperature in (0.3, 1.0, 3.0):
    powers = np.exp((logits - logits.max()) / temperature)
    shares[temperature] = powers / powers.sum()
    likely = shares[temperature].argsort()[::-1][:4]
    print(temperature, {words[i]: round(float(shares[temperature][i]), 2) for i in likely})
assert shares[0.3].max() > shares[1.0].max() > shares[3.0].max()

for strategy in (
    kt.Greedy(),
    kt.Sample(seed=1),
    kt.Sample(temperature=3.0, seed=1),
    kt.Sample(top_p=0.9, seed=1),
):
    tokens = np.array(gpt.generate(prompt, strategy, max_length=5).tokens)[0, 0]
    print(f"{type(strategy).__name__}: the dogs that {' '.join(words[i] for i in tokens)}")

# %% tags=["hide-input"]
names = ("temperature", "probability")
plt.rcParams["font.family"] = font_families(*names)
shown = shares[1.0].argsort()[::-1][:8]
figure, panels = plt.subplots(1, 3, figsize=(10, 2.8), sharey=True, layout="constrained")
for axes, (temperature, share) in zip(panels, shares.items(), strict=True):
    axes.bar(range(8), share[shown], color="#3a6ea5")
    axes.set(title=f"{names[0]} {temperature}", ylim=(0, 1))
    axes.set_xticks(range(8), [words[i] for i in shown], rotation=90)
panels[0].set_ylabel(names[1])
plt.show()

# %% [markdown]
# **What to look at.** The bars are the same eight words. Three verbs can follow, and in the middle they share nearly
# all of the probability. A low temperature takes from the third and gives to the first. A high one gives a share to
# words that cannot follow: with a temperature of 3 a sentence may break its grammar at each step.
#
# ## From 2017 to today's language models
#
# The models behind today's chats are GPT's: decoders without cross-attention. Their layers differ from the paper's in
# five places. Each line begins with the name in this library:
#
# - `normalize_first=True`: normalise after the sum → before the sublayer (chapter 9). Deep stacks train easily.
# - `norm="rms"`: layer normalisation → RMS normalisation: no mean is subtracted and no shift is added; it divides by
#   the root mean square and multiplies by a scale. As good, and cheaper (Zhang and Sennrich, 2019).
# - `RotaryPositions`: positions are added once → each query and key is *rotated* by its position, in every layer. A
#   score depends on the distance.
# - `GatedFeedForward`: two dense layers and a ReLU → a third one as a *gate*: $(\text{SiLU}(xW) \odot xV)\,W_2$. SiLU
#   is a smooth ReLU, $\odot$ multiplies number by number, and $W$, $V$ and $W_2$ are the matrices of the layers. Better
#   for the same number of weights (Shazeer, 2020).
# - `num_key_value_heads`: each head has its own keys and values → several heads of queries share them (*grouped
#   queries*, Ainslie et al., 2023). A smaller cache (chapter 10).


# %%
def block(kind):
    """A layer of the paper, or one of a language model of today."""
    if kind == 2017:
        return kt.layers.DecoderLayer(8, 256, dropout=0.0)
    attention = kt.layers.MultiHeadAttention(
        8, 8, num_key_value_heads=2, positions=kt.layers.RotaryPositions(), use_bias=False
    )
    feed_forward = kt.layers.GatedFeedForward(168)
    return kt.layers.DecoderLayer(
        attention=attention, feed_forward=feed_forward, norm="rms", normalize_first=True, dropout=0.0
    )


sizes = {}
for kind in (2017, 2024):
    layer = block(kind)
    layer(np.zeros((1, 5, 64), "float32"))
    cache = layer.empty_cache(1, 1000)
    numbers = sum(int(np.prod(part.shape)) for part in keras.tree.flatten(cache) if len(part.shape) == 4)
    sizes[kind] = numbers
    print(kind, f"{layer.count_params():,} weights, cache of 1,000 positions: {numbers:,} numbers")
assert sizes[2017] == 4 * sizes[2024]

# %% [markdown]
# Both layers take a `(batch, length, 64)` and return one. With two heads of keys and values in place of eight the cache
# holds a quarter. Everything else in this course is as it was: queries, keys, values, the softmax, the mask.

# %% [markdown]
# ## The Vision Transformer: patches are words
#
# An image is cut into patches, and each patch becomes a vector by one matrix. From then on nearly everything is as in
# BERT: a class token in front, positions, an encoder that sees everything (Dosovitskiy et al., 2021). The place of the
# normalisation differs. BERT's layers are post-norm, as in the paper, and those of the Vision Transformer are pre-norm
# (chapter 9). That is why the code below says `normalize_first=True`. By hand: cut, flatten, multiply.

# %%
image = np.random.default_rng(1).normal(size=(1, 16, 16, 1)).astype("float32")
embed = kt.layers.PatchEmbedding(patch_size=4, d_model=8)
embedded = embed(image)
kernel, bias = embed.get_weights()

patches = [image[0, 4 * i : 4 * i + 4, 4 * j : 4 * j + 4].ravel() for i in range(4) for j in range(4)]
by_hand = np.stack(patches) @ kernel.reshape(16, 8) + bias
np.testing.assert_allclose(embedded[0], by_hand, atol=1e-5)
print(embedded.shape, "16 patches as 16 words")

# %% [markdown]
# Now we draw noisy images of four shapes, and train a small Vision Transformer on them.

# %%
SHAPES = ("row", "column", "cross", "square")


def drawn(count, seed):
    """Draws shapes at random places: images `(count, 16, 16, 1)` from -1 to 1, and their numbers."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(len(SHAPES), size=count)
    images = draw.normal(-0.7, 0.25, size=(count, 16, 16))
    for picture, label, (top, left), length in zip(
        images, labels, draw.integers(0, 8, (count, 2)), draw.integers(6, 9, count), strict=True
    ):
        middle = length // 2
        if label in (0, 2):
            picture[top + middle, left : left + length] += 1.3
        if label in (1, 2):
            picture[top : top + length, left + middle] += 1.3
        if label == 3:
            picture[top : top + length, left : left + length] += 1.3
            picture[top + 1 : top + length - 1, left + 1 : left + length - 1] -= 1.3
    return np.clip(images, -1, 1)[..., None].astype("float32"), labels


vit = kt.models.VisionTransformer(
    16,
    4,
    32,
    kt.layers.Encoder(2, 4, 64, dropout=0.0, activation="gelu", normalize_first=True),
    len(SHAPES),
    channels=1,
)
vit.compile(keras.optimizers.Adam(2e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
vit.fit(*drawn(3000, 1), batch_size=50, epochs=6, verbose=0)
images, labels = drawn(400, 2)
logits, scores = vit(images, return_attention_scores=True)
guessed = np.argmax(logits, -1)
print(f"{np.mean(guessed == labels):.0%} of the new images are named right.")
assert np.mean(guessed == labels) > 0.7
names = np.array(SHAPES)
kt.plots.classified_images(
    images[:16], names[labels[:16]], names[guessed[:16]], wrong="{prediction} (is {label})"
)

# %% [markdown]
# **What to look at.** The name above each image is the model's answer. An orange one is wrong and has the right
# name in brackets.
#
# What does the class token look at? Its weights over the 16 patches are a small map, the mean of the heads of the
# last layer:

# %% tags=["hide-input"]
plt.rcParams["font.family"] = font_families(*SHAPES)
figure, panels = plt.subplots(2, 6, figsize=(9, 3.6), layout="constrained")
maps = np.array(scores[-1]).mean(1)[:, 0, 1:].reshape(-1, 4, 4)
for i, (above, below) in enumerate(panels.T):
    above.imshow(images[i, ..., 0], cmap="gray", vmin=-1, vmax=1)
    above.set_title(SHAPES[guessed[i]], fontsize=9)
    drawn_map = below.imshow(maps[i], cmap="Blues", vmin=0)
    for axes in (above, below):
        axes.set_xticks([])
        axes.set_yticks([])
panels[0, 0].set_ylabel("image")
panels[1, 0].set_ylabel("attention")
plt.show()

# %% [markdown]
# **What to look at.** Compare each map with the image above it. The dark cells often lie on the shape or at its
# ends, where the shapes differ. Sometimes they do not: chapter 13 said why one should not read too much into
# that.

# %% [markdown]
# ## Exercise
#
# ### Five minutes
#
# T5's decoder has a source. A *prefix* language model has none, but treats the first part of its text like a source.
# The first three tokens see each other in both directions. All later tokens see the past only. Build this mask for
# six tokens from `kt.masks.look_ahead_mask`. Which two masks of this chapter lie in it?

# %% tags=["hide-cell"]
causal = np.array(kt.masks.look_ahead_mask(6))[0, 0]
prefix = causal | (np.arange(6) < 3)  # everyone sees the first three keys
assert prefix[:3, :3].all()  # BERT's mask among the first three
assert not prefix[:3, 3:].any()  # the prefix does not see what is written later
np.testing.assert_array_equal(prefix[3:, 3:], causal[3:, 3:])  # GPT's mask among the others
print(prefix.astype(int))

# %% [markdown]
# ### An hour
#
# Write `nucleus(logits, temperature, top_p)` for rows of logits. Divide by the temperature, take the softmax, and
# keep the likeliest words until their probabilities together reach `top_p`. All others get 0, and the rest is divided
# so that it adds up to 1. At least one word stays. Return the probabilities in the order of the logits.
#
# Write it in a file `answer.py`, with NumPy alone. `python course/check.py 14 answer.py` says which of its properties
# hold. No solution is published.
#
# ### A project
#
# Train the small language model of this chapter on texts of your own. Let five people rank continuations by greedy
# search, by temperatures of 0.5 and 1, and by top-p of 0.9, without knowing which is which. Does the likeliest text
# win?

# %% [markdown]
# ## What to read next
#
# - Devlin et al., 2019, ["BERT"](https://arxiv.org/abs/1810.04805), section 3 and figure 2
# - Radford et al., 2019, ["Language Models are Unsupervised Multitask
#   Learners"](https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf)
#   (GPT-2)
# - Holtzman et al., 2020, ["The Curious Case of Neural Text Degeneration"](https://arxiv.org/abs/1904.09751): top-p
# - Touvron et al., 2023, ["LLaMA"](https://arxiv.org/abs/2302.13971), section 2.2: the first four of the changes since
#   2017
# - Dosovitskiy et al., 2021, ["An Image is Worth 16x16 Words"](https://arxiv.org/abs/2010.11929), section 3.1
# - Documents of this library: *Model families* (which checkpoints it reads), *Building blocks*, *Fine-tuning*
# - Next chapter: **15. Can attention explain?**
