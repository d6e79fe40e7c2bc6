# %% [markdown]
# # 13. 어텐션 읽기
#
# 이 장을 마치면 학습한 모델의 헤드가 무엇을 보는지 그릴 수 있고, 번역기에서 단어 정렬(alignment)을 읽을 수 있습니다.
# 그런 그림이 무엇을 보여 주고 무엇을 보여 주지 않는지 말할 수 있습니다. 작은 모델 두 개를 직접 학습합니다. 둘 다
# 어텐션이 있어야 풀 수 있는 문제를 풉니다.
#
# **먼저 읽을 것:** 6장(멀티헤드 어텐션)과 12a장(학습).

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
# ## 논문의 그림: "making ... more difficult"
#
# 논문에는 유명한 그림이 있습니다(그림 3). "... making the registration or voting process more difficult"라는 문장에서
# 여러 헤드가 *making*을 *more*, *difficult*와 잇습니다. 이 단어들은 멀리 떨어져 있지만 뜻으로는 이어져 있습니다.
#
# 정답을 아는 작은 문제를 만들어 봅시다. 문장에서 동사를 가리고 모델이 맞히게 합니다. 동사를 정하는 것은 오른쪽
# 멀리 있는 두 단어뿐입니다.
#
# | | difficult, expensive, complicated | important, useful, interesting |
# | --- | --- | --- |
# | **more** | making | considering |
# | **too** | finding | calling |
#
# 두 단어 가운데 하나만으로는 알 수 없습니다. 주어, 명사, 시간은 동사에 대해 아무것도 알려 주지 않습니다.

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
    """`place`의 단어를 가리고 토큰 ID를 돌려줍니다."""
    row = [number[word] for word in words]
    row[place] = MASK
    return row + [0] * (longest - len(row))


ids = np.array([hidden(words, place) for words, place in sentences], "int32")
answers = np.zeros_like(ids)  # 0은 패딩이므로 가린 자리만 손실에 들어갑니다
for row, (words, place) in enumerate(sentences):
    answers[row, place] = number[words[place]]
print(len(sentences), "문장. 예:", " ".join(sentences[0][0]))

# %% [markdown]
# 모델은 헤드가 네 개인 층 하나로 된 인코더입니다. 임베딩에는 학습하는 위치(8장)를 더하고, 인코더 위의 출력층
# `MaskedLanguageHead`가 자리마다 단어의 로짓을 냅니다. 800문장으로 학습하고 160문장을 테스트용으로 남깁니다.

# %%
encoder = kt.layers.Encoder(1, num_heads=4, d_ff=64, dropout=0.0)
embeddings = kt.layers.Embeddings(
    len(vocabulary),
    32,
    kt.layers.LearnedPositions(longest),
    norm=kt.layers.LayerNormalization(epsilon=1e-12),
    dropout=0.0,
    output_bias=True,  # 단어마다 로짓에 더하는 수
)
guesser = kt.models.EncoderModel(embeddings, encoder, head=kt.models.MaskedLanguageHead())
guesser.compile(keras.optimizers.Adam(3e-3), kt.MaskedCrossentropy(), metrics=[kt.MaskedAccuracy()])
guesser.fit(ids[:800], answers[:800], batch_size=32, epochs=10, verbose=0)
_, accuracy = guesser.evaluate(ids[800:], answers[800:], verbose=0)
print(f"테스트 문장의 동사를 {accuracy:.0%} 맞혔습니다.")
assert accuracy > 0.9

# %% [markdown]
# 이제 안을 들여다봅니다. `return_attention_scores=True`는 층마다 `(batch, num_heads, length, length)` 모양의 어텐션
# 가중치를 줍니다. 쿼리 하나의 어텐션 분포를 그립니다. 위에는 보는 단어, 아래에는 볼 수 있는 단어가 있고, 헤드마다 색이
# 다릅니다. 가중치가 클수록 선이 굵습니다.

# %%
COLOURS = ("#3a6ea5", "#d1603d", "#2a9d8f", "#8a6fb0")


def draw_heads(axes, words, weights, place, title):
    """한 자리에서 헤드마다 무엇을 보는지 그립니다. `weights`는 `(num_heads, length)`입니다."""
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
        axes.plot([], [], color=colour, linewidth=3, label=f"헤드 {head + 1}")
    for i, word in enumerate(words):
        colour = "black" if i == place else "#b0b0b0"
        axes.text(i, 1.05, word, ha="left", va="bottom", rotation=40, color=colour)
        axes.text(i, -0.05, word, ha="right", va="top", rotation=40)
    axes.set(xlim=(-1, len(words)), ylim=(-0.7, 1.7), title=title)
    axes.text(-1, 1, "쿼리", ha="right", va="center")
    axes.text(-1, 0, "키", ha="right", va="center")
    axes.set_axis_off()
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)


text = "many states are making the registration process more difficult since 2009 ."
example = text.split()
place = example.index("making")
logits, scores = guesser(np.array([hidden(example, place)]), return_attention_scores=True)
looks = np.array(scores[0])[0, :, place, : len(example)]
assert vocabulary[int(np.argmax(logits[0, place]))] == "making"

title = "가려진 단어가 보는 곳"

# %% tags=["hide-input"]
plt.rcParams["font.family"] = font_families(title)
figure, axes = plt.subplots(figsize=(9, 4.2), layout="constrained")
draw_heads(axes, example, looks, place, title)
plt.show()

# %% [markdown]
# **그림 읽기.** 가장 굵은 선을 찾아봅시다. *making*(모델에게는 `[MASK]`로만 보입니다)에서 사이의 단어들을 건너
# *difficult*나 *more*로 갑니다. 헤드마다 모습이 다릅니다. 어떤 헤드는 이 단어에 거의 모든 가중치를 주고, 어떤 헤드는
# 모든 단어에 조금씩 나누어 주어 선이 가늘고 옅습니다. 어느 헤드가 어느 단어를 읽는지는 학습을 시작한 난수에 따라
# 달라집니다.
#
# 그림 하나로는 부족하므로 모든 테스트 문장에서 측정해 봅시다. 가려진 단어의 어텐션 가중치 가운데 얼마가 동사를 정하는
# 두 단어에 갈까요? 다음 셀은 헤드마다 그 합의 평균을 출력합니다. 고르게 나누어진다면 많아야 4분의 1입니다.

# %%
deciding = np.isin(ids[800:], [number[word] for word in ("more", "too", *sum(ADJECTIVES.values(), ()))])
_, scores = guesser(ids[800:], return_attention_scores=True)
rows = np.arange(len(deciding))
places = np.array([place for _, place in sentences[800:]])
from_hidden = np.array(scores[0])[rows, :, places]  # (sentences, num_heads, length)
shares = (from_hidden * deciding[:, None]).sum(-1).mean(0)
even = (2 / (ids[800:] != 0).sum(-1)).mean()
print(f"두 단어에 준 어텐션 가중치의 합, 헤드별: {np.round(shares, 2)}, 고르게 나눈 경우: {even:.2f}")
assert shares.mean() > 2 * even

# %% [markdown]
# 그림은 두 단어를 가리킵니다. 그 단어들이 정말 *중요한지* 알려면 바꾸어 보아야 합니다. 모든 테스트 문장에서 *more*와
# *too*를 서로 바꿉니다. 다음에는 그 대신 두 명사 *registration*과 *voting*을 서로 바꿉니다. 첫째 경우에는 답이 바뀌어야
# 하고, 둘째 경우에는 바뀌지 않아야 합니다.


# %%
def guesses(rows_of_ids):
    """가려진 자리에 모델이 넣는 토큰 ID입니다."""
    return np.argmax(guesser(rows_of_ids), -1)[rows, places]


def exchanged(rows_of_ids, first, second):
    """모든 행에서 두 단어를 서로 바꿉니다."""
    a, b = number[first], number[second]
    return np.where(rows_of_ids == a, b, np.where(rows_of_ids == b, a, rows_of_ids))


before = guesses(ids[800:])
other_degree = np.mean(guesses(exchanged(ids[800:], "more", "too")) != before)
other_noun = np.mean(guesses(exchanged(ids[800:], "registration", "voting")) != before)
print(f"바뀐 답: more와 too를 바꾸면 {other_degree:.0%}, 명사를 바꾸면 {other_noun:.0%}")
assert other_degree > 0.9 and other_noun < 0.1

# %% [markdown]
# 여기서는 어텐션과 정답이 맞아떨어집니다. 늘 그렇지는 않습니다. 15장에는 둘이 서로 다른 경우가 나옵니다.

# %% [markdown]
# ## 정렬: 어떤 단어가 어떤 단어의 번역일까요?
#
# 번역 모델의 교차 어텐션(cross-attention)은 쓰고 있는 단어를 원문과 잇습니다. Bahdanau et al.(2015)의 그림 3은,
# 모델이 문장 쌍만 보고 어떤 단어가 어떤 단어의 번역인지 배운다는 것을 처음으로 보여 주었습니다. 이것을
# *정렬*(alignment)이라고 합니다.
#
# 한국어는 동사가 끝에 오고 영어는 주어 다음에 옵니다. 그래서 선이 엇갈려야 합니다. 과거 시제 문장으로 아주 작은
# 번역기를 학습합니다. 모든 문장에 주어, 목적어, 동사가 있고, 장소와 시간이 있는 문장도 있습니다.

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

examples = []  # 한국어, 영어, 그리고 영어 단어가 어느 한국어 단어에서 왔는지
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
# 그림에 단어가 그대로 나오도록 한 단어를 한 토큰으로 합니다. 어휘는 모든 단어의 목록입니다.
# `WordPieceTokenizer`는 통째로 아는 단어는 나누지 않습니다.

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
print(f"완전 일치율 {exact:.0%} (새 문장 {len(test)}개)")
assert exact > 0.8

# %%
text = "의사는 아침에 도서관에서 편지를 썼습니다 ."
title = "교차 어텐션: 번역문의 단어를 쓸 때 원문의 어느 단어를 보는가"
kt.plots.translation_attention(
    translator, text, title=title, panel="{layer}층, 헤드 {head}", label="어텐션 가중치"
)

# %% [markdown]
# **그림 읽기.** 행은 모델이 쓰는 단어이고 열은 한국어 단어입니다. *wrote*의 행을 따라가면 문장 끝의 "썼습니다"를 보는
# 헤드가 여럿입니다. *letter*의 행에서는 그 앞의 "편지를"을 보는 헤드가 많습니다. 주어인 *the doctor* 다음부터는 진한
# 칸이 오른쪽에서 왼쪽으로 이어집니다. 어순이 뒤집혔기 때문입니다. *뚜렷하지 않은* 것도 봅시다. 어떤 헤드는 마침표를
# 보고, 어떤 헤드는 이웃 단어를 봅니다.
#
# 이 라이브러리는 같은 것을 브라우저용 페이지로도 보여 줍니다. 헤드를 끄고 켜거나, 단계를 옮겨 가거나, 가중치
# 하나가 어떻게 나오는지 볼 수 있습니다. 노트북에서는 바로 아래에 페이지가 나타나고, 메서드 `save("page.html")`은
# 파일로 저장합니다. (`live=False`는 이 문장들만 기록합니다. 12a장처럼 SentencePiece 토크나이저를 쓰는
# 번역기는 페이지 안에서 바로 실행됩니다.)

# %%
kt.plots.attention(translator, [text, test[0][0]], live=False, language="ko")

# %% [markdown]
# ## 정렬은 얼마나 정확할까요?
#
# 영어 단어가 어느 한국어 단어에서 왔는지 우리는 알고 있습니다. 그래서 셀 수 있습니다. 가장 큰 가중치가 맞는
# 단어에 있는 경우가 얼마나 될까요? 층마다 헤드별로, 그리고 헤드의 평균에서 세어 봅니다.
#
# 교차 어텐션의 $t$번째 행은 $t$번째 단계에서 *쓰는* 단어에 해당합니다. 그 쿼리는 바로 앞 단어에서 옵니다.


# %%
def padded(rows):
    """ID의 행들을 0으로 채워 배열로 만듭니다."""
    length = max(map(len, rows))
    return np.array([row + [0] * (length - len(row)) for row in rows], "int32")


source = padded([[*row, 3] for row in tokenizer.tokenize([korean for korean, _, _ in test]).to_list()])
target = padded([[2, *row] for row in tokenizer.tokenize([english for _, english, _ in test]).to_list()])
_, scores = model({"source": source, "target": target}, return_attention_scores=True)
cross = np.array(scores["cross"])  # (layers, sentences, num_heads, target_len, source_len)


def hits(weights):
    """가장 큰 가중치가 맞는 단어에 있는 비율입니다. `(sentences, target_len, source_len)`을 받습니다."""
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
    print(f"층 {layer}: 헤드 {np.round(by_head, 2)}, 헤드의 평균 {mean:.2f}")
chance = np.mean([1 / len(korean.split()) for korean, _, _ in test])
print(f"우연 {chance:.2f}")
assert best > 2 * chance

# %% [markdown]
# 이 결과에서 세 가지를 알 수 있습니다.
#
# - 아무도 어떤 단어가 어떤 단어의 짝인지 알려 주지 않았는데도, 우연보다 훨씬 정확한 정렬이 생겼습니다.
# - 헤드 하나가 곧 정렬인 경우는 없습니다. 헤드 하나는 자주 틀리고, 한 층의 헤드를 평균하면 대개 그 층의 헤드 대부분보다
#   낫습니다. Garg et al.(2019)은 큰 모델에서 끝에서 둘째 층의 평균을 쓰고, `model.score`도 그렇게 합니다.
# - 번역은 거의 모두 맞는데 정렬은 가장 좋은 행도 완벽하지 않습니다. 한국어 단어 자리의 상태에는 이미 이웃 단어의 내용이
#   섞여 있습니다. 인코더가 섞은 것입니다. 그래서 헤드는 다른 단어의 자리에서도 "편지를"을 읽을 수 있습니다.

# %% [markdown]
# ## 가중치는 기여도가 아닙니다
#
# 함정이 하나 더 있습니다. 헤드의 출력은 $\sum_j \alpha_j v_j$입니다. 가중치 $\alpha_j$가 커도 밸류 $v_j$가 아주 작으면
# 더해지는 것은 거의 없습니다. 학습한 모델은 이것을 이용합니다. 어떤 문장에서 할 일이 없는 헤드는 밸류가 0에 가까운
# 마침표나 첫 토큰에 가중치를 둡니다. 그러므로 $\alpha_j$와 함께 $\lVert \alpha_j v_j \rVert$도 보아야 합니다(Kobayashi
# et al., 2020). 손으로 계산해 봅시다.

# %%
alphas = np.array([0.8, 0.2])
values = np.array([[0.01, 0.0], [0.0, 3.0]])  # 마침표, 명사
contributions = np.linalg.norm(alphas[:, None] * values, axis=-1)
print(contributions / contributions.sum())
np.testing.assert_allclose(contributions, [0.008, 0.6])
assert alphas.argmax() == 0 and contributions.argmax() == 1

# %% [markdown]
# ## 어텐션 그림에서 무엇을 읽을 수 있을까요?
#
# | 보이는 것 | 말할 수 있는 것 | 말할 수 없는 것 |
# | --- | --- | --- |
# | 굵은 선 | 이 층에서 이 헤드는 이 자리를 읽습니다 | 이 단어가 출력의 이유입니다 |
# | 선이 없음 | 이 헤드는 그 자리를 읽지 않습니다 | 그 단어는 영향이 없습니다 (다른 헤드나 층을 거칠 수 있습니다) |
# | 여러 문장에서 같은 선 | 이 헤드에는 습관이 있습니다. 얼마나 잦은지 세어 봅시다 | 이 헤드는 "문법 헤드"입니다 |
# | 다시 학습하면 사라지는 선 | 같은 답에 이르는 방법이 여럿입니다 | 어텐션은 의미가 없습니다 |
#
# 그 이상을 주장하려면 *more*와 *too*처럼 입력을 바꾸고 출력을 보아야 합니다. `kt.explain`은 번역기에서 이 일을
# 합니다. 토큰을 하나씩 가려 봅니다.

# %% [markdown]
# ## 연습 문제
#
# ### 5분 문제
#
# 어텐션 가중치 $w_1, \ldots, w_n$의 엔트로피는 $-\sum_i w_i \log w_i$입니다. 모든 곳을 똑같이 보는 헤드의 엔트로피는
# $\log n$이고, 한 단어만 보는 헤드의 엔트로피는 0입니다. 테스트 문장의 가려진 단어에 대해(`from_hidden`), 앞에서 동사를
# 맞힌 모델의 헤드마다 엔트로피의 평균을 구해 봅시다. 어느 헤드가 가장 날카로울까요? 모든 헤드가 고르게 보는 것보다
# 날카로울까요?

# %% tags=["hide-cell"]
# 엔트로피가 가장 작은 헤드가 가장 날카롭습니다. 어느 헤드인지는 학습마다 다릅니다. 모든 헤드의 엔트로피가 고르게 볼
# 때보다 작으므로, 모두 고르게 보는 것보다 날카롭습니다.
entropies = -(from_hidden * np.log(np.maximum(from_hidden, 1e-12))).sum(-1).mean(0)
even_entropy = np.log((ids[800:] != 0).sum(-1)).mean()
print(f"헤드 {np.round(entropies, 2)}, 고르게 {even_entropy:.2f}")
assert np.all(entropies > 0) and np.all(entropies < even_entropy)
print("가장 날카로운 헤드:", entropies.argmin() + 1)

# %% [markdown]
# ### 한 시간 문제
#
# 어텐션을 모든 층에 걸쳐 따라가는 `rollout(weights)`를 작성합니다(Abnar, Zuidema, 2020). `weights`의 모양은
# `(layers, heads, length, length)`입니다. 층마다 헤드의 평균을 구하고, 단위 행렬과 다시 평균을 냅니다. 잔차 연결이
# 토큰을 그대로 넘기기 때문입니다. 층을 곱해서, $i$번째 행이 위의 토큰 $i$에 아래의 토큰이 얼마씩 들어 있는지 말하게
# 합니다.
#
# `answer.py`에 NumPy만으로 작성합니다. `python course/check.py 13 answer.py`를 실행하면 맞는 성질과 틀린 성질을 알려
# 줍니다. 풀이는 공개하지 않습니다.
#
# ### 프로젝트
#
# 직접 학습한 번역기의 문장 열 개를 고르고, 어텐션 뷰어를 열기 전에 정렬을 손으로 그립니다. 어느 헤드가 가장 잘
# 맞나요? 모든 문장에서 같은 헤드인가요? 일치하는 정도를 숫자로 재고, 균등 가중치를 주는 헤드의 값도 나란히 적습니다.

# %% [markdown]
# ## 더 읽을거리
#
# - Vaswani et al., 2017, ["Attention Is All You Need"](https://arxiv.org/abs/1706.03762), 그림 3~5
# - Bahdanau et al., 2015, ["Neural Machine Translation by Jointly Learning to Align and
#   Translate"](https://arxiv.org/abs/1409.0473), 그림 3
# - Kobayashi et al., 2020, ["Attention is Not Only a Weight"](https://arxiv.org/abs/2004.10102)
# - Garg et al., 2019, ["Jointly Learning to Align and Translate with Transformer
#   Models"](https://arxiv.org/abs/1909.02074)
# - 이 라이브러리의 문서: *Attention viewer*, *Pictures*
# - 다음 장: **14. 그 뒤에 나온 것들**
