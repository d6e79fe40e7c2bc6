# %% [markdown]
# # 10. One sentence, step by step
#
# After this chapter you have followed one sentence, 저는 학생입니다., through a whole Transformer: ids, embeddings,
# positions, encoder, masked attention, cross-attention, the next word. You know the shape of the tensor at each step,
# why a cache saves work, and what a beam does.
#
# **Before:** chapters 6 to 9.

# %% [markdown]
# ![The Transformer, with the part of this chapter in colour](../../docs/images/transformer_10.svg)
#
# The whole model. In colour is what this chapter adds: the way of one sentence from ids to the next token, and back
# to the decoder for the turn after that.

# %% [markdown]
# ## A small translator
#
# To follow a real sentence we need a model that really translates. A few dozen sentences are enough for a small one:
# who, and what they are or are not. We train it in seconds. Chapter 12a explains the training; here it is only a tool.

# %%
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import collections
import itertools

import keras
import matplotlib.pyplot as plt
import numpy as np

import keras_transformer as kt
from keras_transformer.fonts import font_families

keras.utils.set_random_seed(10)

# %%
subjects = {
    "저는": "I am",
    "그는": "He is",
    "그녀는": "She is",
    "민수는": "Minsu is",
    "제 친구는": "My friend is",
    "우리 형은": "My brother is",
}
jobs = {
    "학생": "a student",
    "선생님": "a teacher",
    "의사": "a doctor",
    "군인": "a soldier",
    "가수": "a singer",
    "화가": "a painter",
}
pairs = []
for who, is_english in subjects.items():
    for job, job_english in jobs.items():
        pairs.append((f"{who} {job}입니다.", f"{is_english} {job_english}."))
        not_job = job + ("가" if job in ("의사", "가수", "화가") else "이")
        pairs.append((f"{who} {not_job} 아닙니다.", f"{is_english} not {job_english}."))
print(len(pairs), "pairs, such as", pairs[1])

tokenizer = kt.text.SentencePieceTokenizer.train(
    [text for pair in pairs for text in pair], 160, model_type="bpe"
)
model = kt.Transformer(tokenizer.vocab_size, num_layers=2, d_model=32, num_heads=4, d_ff=64, dropout=0.0)
model.compile(keras.optimizers.Adam(3e-3), kt.MaskedCrossentropy())
batches = kt.data.Batches(pairs, tokenizer, batch_tokens=1024, num_buckets=1)
history = model.fit(batches.dataset(), steps_per_epoch=batches.steps, epochs=60, shuffle=False, verbose=0)
print("loss: first, last epoch", [round(history.history["loss"][i], 3) for i in (0, -1)])

# %% [markdown]
# ## Step 1: text becomes ids
#
# The tokenizer cuts the sentence into pieces that it knows. `▁` marks where a word begins. Each piece has an id, a
# whole number, and `</s>` says that the sentence ends.
#
# How does it know pieces? *Byte-pair encoding* (BPE; Sennrich et al., 2016) learns them from words that are counted. At
# first each letter is a piece. Then the pair of neighbours that occurs most often becomes one piece, again and again. A
# frequent word becomes one piece. A word that never occurred is cut into pieces that did:


# %%
def joined(pieces, pair):
    """Joins this pair of pieces wherever it occurs in a word."""
    made = []
    for piece in pieces:
        if made and (made[-1], piece) == pair:
            made[-1] += piece
        else:
            made.append(piece)
    return made


def learn_merges(counts, number):
    """Learns which pairs to join from words and how often each occurs."""
    words, merges = {word: list(word) for word in counts}, []
    for _ in range(number):
        pairs = collections.Counter()
        for word, pieces in words.items():
            for pair in itertools.pairwise(pieces):
                pairs[pair] += counts[word]
        merges.append(max(pairs, key=pairs.get))
        words = {word: joined(pieces, merges[-1]) for word, pieces in words.items()}
        print(f"{''.join(merges[-1]):6}{pairs[merges[-1]]}")
    return merges


merges = learn_merges({"low": 5, "lower": 2, "newest": 6, "widest": 3}, 4)
assert ["".join(pair) for pair in merges] == ["es", "est", "lo", "low"]
unseen = list("lowest")
for pair in merges:
    unseen = joined(unseen, pair)
print("lowest ->", unseen)
assert unseen == ["low", "est"]

# %% [markdown]
# In our corpus, `학생` occurs with `입니다` and with `이 아닙니다`, so it is a piece, and `입니다` is another.

# %%
sentence = "저는 학생입니다."
ids = [*tokenizer.tokenize([sentence])[0].numpy().tolist(), model.eos_id]
pieces = tokenizer.pieces(ids)
print(pieces, ids, sep="\n")
assert pieces == ["▁저는", "▁학생", "입니다", ".", "</s>"]
source = np.array([ids], "int32")
n, d_model = len(ids), model.d_model

# %% [markdown]
# ## Step 2: ids become vectors, with positions
#
# Each id picks a row of the embedding, times $\sqrt{d_{model}}$. Then the position of each piece is added (chapter 8).
# One layer of the model, `model.source`, holds both parts.

# %%
x = model.source.tokens(source)
table = model.source.tokens.embeddings.numpy()
np.testing.assert_allclose(x[0], table[ids] * np.sqrt(d_model), rtol=1e-5)
x = model.source.positions(x)
print("embeddings with positions", tuple(x.shape))
assert x.shape == (1, n, d_model)

# %% [markdown]
# ## Step 3: the encoder, layer by layer
#
# Each layer lets the pieces look at one another (chapter 6), and works on each alone (chapter 9). The shape never
# changes. The result is the *memory*: one vector for each piece, which knows its sentence.

# %%
memory = x
for i, layer in enumerate(model.encoder.layers):
    memory, scores = layer(memory, return_attention_scores=True)
    print(f"encoder layer {i + 1}: vectors {tuple(memory.shape)}, attention weights {tuple(scores.shape)}")
np.testing.assert_allclose(memory, model.encode(source).states, atol=1e-5)

# %% [markdown]
# ## Step 4: the decoder writes one word
#
# The target so far is `<s>` alone: it is the output shifted right (chapter 7, where the mark was called `<SOS>`). The
# decoder embeds it, looks at itself with the look-ahead mask, asks the memory by cross-attention, and gives one vector
# for each position. The product with the embedding matrix gives a number for each of the ids. These numbers before the
# softmax are called *logits*, and the softmax turns them into probabilities. The output layer has no matrix of its own:
# it uses the embedding matrix again. This is called *weight tying* (section 3.4; Press and Wolf, 2017). In the paper
# and in this model the source embedding, the target embedding and the output layer are one matrix.

# %%
encoded = model.encode(source)
target = np.array([[model.bos_id]], "int32")
y = model.target.positions(model.target.tokens(target))
for i, layer in enumerate(model.decoder.layers):
    y, (own, cross) = layer(y, encoded.states, return_attention_scores=True)
    print(f"decoder layer {i + 1}: {tuple(y.shape)}, cross-attention {tuple(cross.shape)}")
logits = model.output_embedding(y, reverse=True)  # times the transposed embedding matrix
print("logits of all ids", tuple(logits.shape))
probabilities = keras.ops.convert_to_numpy(keras.ops.softmax(logits[0, -1]))
best = probabilities.argsort()[::-1][:3]
for i in best:
    print(f"  {tokenizer.pieces([int(i)])[0]!r}: {probabilities[i]:.3f}")
np.testing.assert_allclose(model.decode(target, encoded), logits, atol=1e-4)

# %% [markdown]
# ## Step 5: again, until the sentence ends
#
# The likeliest piece is appended, and the decoder runs again with one position more. When the piece is `</s>`, the
# sentence is done. This is *greedy* search.

# %%
written = [model.bos_id]
while written[-1] != model.eos_id and len(written) < 20:
    logits = model.decode(np.array([written], "int32"), encoded)
    written.append(int(logits[0, -1].numpy().argmax()))
    print(tokenizer.pieces(written[1:]))
translation = tokenizer.detokenize([written[1:]])[0].numpy().decode()
print(sentence, "->", translation)
assert translation == "I am a student."

# %% [markdown]
# ## The cache: no word is read twice
#
# The loop above computes every position again at each step, although the look-ahead mask keeps the earlier ones from
# changing. A *cache* keeps the keys and values of what is written. Then each step reads one new position only. The
# numbers are the same.

# %%
cache = model.decoder.empty_cache(1, len(written))
for index, token in enumerate(written[:-1]):
    step, cache = model.decode(np.array([[token]], "int32"), encoded, cache, index)
    whole = model.decode(np.array([written[: index + 1]], "int32"), encoded)
    np.testing.assert_allclose(step[0, 0], whole[0, -1], atol=1e-4)
found = model.generate(source, kt.Greedy())
assert found.tokens[0, 0].numpy()[: len(written) - 1].tolist() == written[1:]
print("generate finds the same, with a cache")

# %% tags=["hide-input"]
names = (
    "without a cache",
    "with a cache",
    "position",
    "step",
    "new",
    "kept",
)
plt.rcParams["font.family"] = font_families(*names)
figure, panels = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
steps = len(written) - 1
computed = np.tril(np.ones((steps, steps)))
for axes, table, title in zip(panels, (computed, computed / 2 + np.eye(steps) / 2), names, strict=False):
    axes.imshow(table, cmap="Blues", vmin=0, vmax=1.4)
    axes.set(title=title, xlabel=names[2], ylabel=names[3])
    axes.set_xticks(range(steps), tokenizer.pieces(written[:-1]))
    axes.set_yticks(range(steps), range(1, steps + 1))
    for (row, column), value in np.ndenumerate(table):
        axes.text(
            column, row, {1: names[4], 0.5: names[5], 0: ""}[value], ha="center", va="center", fontsize=8
        )
plt.show()

# %% [markdown]
# A row is a step, a column the position of a token. Without the cache each step computes the keys and values of its
# whole row. With the cache it computes those on the diagonal and takes the others as they are. The longer the text, the
# more this saves: for 1,000 tokens it computes 1,000 positions instead of about 500,000.

# %% [markdown]
# ## Which word looked where?
#
# The cross-attention of the last decoder layer, the mean of its heads. Each row is a piece that the model wrote, each
# column a piece that it read. Look at the row that writes `student`: where is it darkest? It translates `▁학생`. In
# some rows another piece is darker than the translation, and all rows are pale. In the memory each vector holds
# something of the whole sentence already, so the decoder need not look at one piece alone. The translator of chapter
# 13 learns from more sentences, and looks more sharply.

# %%
inputs = {"source": source, "target": np.array([written[:-1]], "int32")}
_, attention = model(inputs, return_attention_scores=True)
mean = attention["cross"][-1].numpy().mean(axis=1)
np.testing.assert_allclose(mean.sum(axis=-1), 1, rtol=1e-4)
kt.plots.attention_weights(
    attention["cross"][-1:],
    tokenizer.pieces(written[1:]),
    pieces,
    title="cross-attention",
    heads="mean",
    panel="layer 2, mean of heads",
    label="attention weight",
)

# %% [markdown]
# ## Beam search: several hypotheses at once
#
# Greedy search cannot take a word back. A *beam search* of width 4 keeps the four best drafts, called *hypotheses*, at
# each step. The score of a hypothesis is the sum of the log probabilities of its pieces, $\log P$. Each further piece
# multiplies by a probability below 1, so the score alone would favour short sentences. At the end the scores are
# therefore corrected for length: hypotheses are ordered by the score divided by the *length penalty* (Wu et al., 2016,
# equation 14):
#
# $$\text{lp}(y) = \left(\frac{5 + |y|}{6}\right)^{\alpha} \qquad
# \text{normalised score}(y) = \frac{\log P(y \mid x)}{\text{lp}(y)}$$
#
# $|y|$ is the number of pieces, with `</s>`. The paper takes $\alpha = 0.6$ (section 6.1), and so does `kt.Beam` by
# default. With $\alpha = 0$ nothing is corrected; a larger $\alpha$ favours longer sentences. The numbers printed below
# are the scores before this correction.

# %% [markdown]
# ![A tree of three steps: with a width of 2 the beam finds A dog barks](../../docs/images/motion_beam.svg)
#
# On the site you can change the width and go from step to step. The probabilities are made up. With a width of 1,
# greedy search takes *The*, because it is likelier than *A*, and ends with a sentence of probability 0.100. With a
# width of 2 the beam finds *A dog barks* with 0.252.

# %%
beams = model.generate(source, kt.Beam(4, n_best=4))
for tokens, length, score in zip(beams.tokens[0], beams.lengths[0], beams.scores[0], strict=True):
    text = tokenizer.detokenize([tokens.numpy()[: int(length)].tolist()])[0].numpy().decode()
    print(f"{float(score):7.3f}  {text}")
scores = beams.scores[0].numpy()
assert scores[0] == scores.max()
np.testing.assert_allclose(model.score(source, beams.tokens[:, :1]).scores[0, 0], scores[0], atol=1e-3)

translator = kt.serving.Translator(model, tokenizer, strategy=kt.Beam(4))
print(translator.translate(["저는 학생입니다.", "그녀는 가수가 아닙니다."]))
assert translator.translate(["저는 학생입니다."]) == ["I am a student."]

# %% [markdown]
# ## Exercise
#
# ### Five minutes
#
# `base` translates a sentence of 20 pieces into 20 pieces, `</s>` included, with 6 decoder layers. Count the positions
# that go through a decoder layer. A position that goes through all six layers counts six times.
#
# 1. How many are there without a cache, if each step computes all positions so far?
# 2. How many are there with a cache?
# 3. For self-attention, the cache keeps keys and values of 512 numbers for each position and layer, in float32. How
#    many bytes does it hold at the end?

# %% tags=["hide-cell"]
# 1. The steps compute 1, 2, ..., 20 positions. These are 210, and 1,260 in 6 layers.
# 2. Each step computes one position. These are 20, and 120 in 6 layers.
without_cache = 6 * sum(range(1, 21))
with_cache = 6 * 20
assert (without_cache, with_cache) == (1260, 120)
# 3. 20 positions, 6 layers, a key and a value, 512 numbers, 4 bytes.
size = 20 * 6 * 2 * 512 * 4
assert size == 491_520  # about half a megabyte
print(without_cache, with_cache, f"{size:,}")

# %% [markdown]
# ### An hour
#
# Write `learn_merges(words, number)`: byte-pair encoding. `words` maps each word to its count. All words start as
# letters. In each round, count every pair of neighbours, as often as the word occurs, and merge the most frequent one
# everywhere. Of equal counts take the pair that is first in the alphabet. In a run of equal letters pairs do not
# overlap: *aaa* holds the pair *a a* once. Return the list of merged pairs, at most `number`.
#
# Write it in a file `answer.py`, with NumPy alone. `python course/check.py 10 answer.py` says which of its properties
# hold. No solution is published.
#
# ### A project
#
# Train two tokenizers on Korean text of your own, one with 1,000 and one with 8,000 pieces, and a third one on
# letters. Train the same small translator with each. Compare the length of the sentences, the time of an epoch, and
# the quality on rare words.

# %% [markdown]
# ## What to read next
#
# - Vaswani et al., 2017, ["Attention Is All You Need"](https://arxiv.org/abs/1706.03762), section 3.1, and section 6.1
#   on the beam
# - Sennrich et al., 2016, ["Neural Machine Translation of Rare Words with Subword
#   Units"](https://arxiv.org/abs/1508.07909): byte-pair encoding
# - Press and Wolf, 2017, ["Using the Output Embedding to Improve Language
#   Models"](https://arxiv.org/abs/1608.05859): weight tying
# - Wu et al., 2016, ["Google's Neural Machine Translation System"](https://arxiv.org/abs/1609.08144), section 7: the
#   length penalty
# - In this library: the pages "Decoding" and "Attention viewer", which shows all heads and steps of your own
#   translator
# - The next chapter: **11. Why self-attention**
