# %% [markdown]
# # 16. 한 페이지에 담은 모델 전체
#
# 이 장을 마치면 순수한 Keras로 쓴 트랜스포머 전체를 읽은 것입니다. 토큰 ID에서 번역문까지 코드 110줄쯤입니다. 이
# 모델을 직접 학습하고, 파라미터를 라이브러리에 복사하여 같은 로짓을 얻습니다. 파라미터의 수도 손으로 세고, 논문의
# base 모델을 센 값과 논문이 말하는 6,500만 개를 비교합니다.
#
# **먼저 읽을 것:** 6장부터 10장까지(부품), 12a장(학습). 이 장의 학습은 코어 두 개에서 40초쯤 걸립니다.

# %% [markdown]
# ![트랜스포머](../../docs/images/transformer.ko.svg)
#
# 모델 전체입니다. 그림의 상자 하나가 아래 코드에서는 몇 줄입니다.

# %% [markdown]
# ## 전체 코드를 읽습니다
#
# 2017년의 트랜스포머이고, 빠진 부품이 없습니다. 밀집층, 임베딩, 층 정규화, 드롭아웃은 Keras에서 가져옵니다. 나머지는
# 모두 직접 썼고, 이 라이브러리에서 가져온 것은 없습니다. `Transformer.call`부터 읽어 봅시다. 원문을 인코딩하고,
# 번역문을 디코딩합니다. 거기서부터 호출을 하나씩 따라가면 됩니다.

# %%
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

# %%
import keras
import numpy as np
from keras import layers, ops

PAD, START, END = 0, 1, 2


def position_table(length, d_model):
    """사인과 코사인이 번갈아 나오는 표입니다. (length, d_model), 3.5절."""
    place = ops.arange(length, dtype="float32")[:, None]
    angle = place / 10000.0 ** (ops.arange(0, d_model, 2, dtype="float32") / d_model)
    return ops.reshape(ops.stack([ops.sin(angle), ops.cos(angle)], axis=-1), (length, d_model))


def padding_mask(ids):
    """키가 진짜 토큰인 자리가 True입니다. (batch, 1, 1, length)."""
    return (ids != PAD)[:, None, None, :]


def look_ahead_mask(length):
    """키가 쿼리보다 뒤에 있지 않은 자리가 True입니다. (length, length)."""
    return ops.arange(length)[:, None] >= ops.arange(length)[None, :]


class Attention(layers.Layer):
    """헤드가 여러 개인 스케일드 닷 프로덕트 어텐션입니다. 3.2절."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.d_model, self.num_heads = d_model, num_heads
        self.query, self.key, self.value = (layers.Dense(d_model) for _ in range(3))
        self.attention_output = layers.Dense(d_model)

    def split(self, x):
        """(batch, length, d_model)을 (batch, num_heads, length, key_dim)으로 바꿉니다."""
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
    """자리마다 똑같은 밀집층 두 개입니다. 3.3절."""

    def __init__(self, d_model, d_ff):
        super().__init__()
        self.inner, self.outer = layers.Dense(d_ff, activation="relu"), layers.Dense(d_model)

    def call(self, x):
        return self.outer(self.inner(x))


class AddAndNorm(layers.Layer):
    """서브층의 출력을 입력에 더하고 정규화합니다. 3.1절과 5.4절."""

    def __init__(self, dropout):
        super().__init__()
        self.drop, self.norm = layers.Dropout(dropout), layers.LayerNormalization(epsilon=1e-6)

    def call(self, x, output):
        return self.norm(x + self.drop(output))


class EncoderLayer(layers.Layer):
    """셀프 어텐션 다음에 피드 포워드 신경망이 옵니다."""

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
    """둘 사이에 메모리를 보는 교차 어텐션이 있습니다."""

    def __init__(self, d_model, num_heads, d_ff, dropout):
        super().__init__(d_model, num_heads, d_ff, dropout)
        self.cross_attention = Attention(d_model, num_heads)
        self.cross_attention_residual = AddAndNorm(dropout)

    def call(self, x, memory, mask, memory_mask):
        x = self.self_attention_residual(x, self.self_attention(x, x, mask))
        x = self.cross_attention_residual(x, self.cross_attention(x, memory, memory_mask))
        return self.feed_forward_residual(x, self.feed_forward(x))


class Transformer(keras.Model):
    """원문 ID (batch, source_len)과 번역문 ID (batch, target_len)에서 로짓 (batch, target_len, words)을 냅니다."""

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
        return x @ ops.transpose(self.embedding.embeddings)  # 출력은 임베딩과 가중치를 공유합니다. 3.4절

    def call(self, inputs):
        return self.decode(inputs["target"], *self.encode(inputs["source"]))


def loss(labels, logits):
    """진짜 토큰의 평균 크로스 엔트로피입니다. 패딩은 뺍니다."""
    losses = ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    real = ops.cast(labels != PAD, losses.dtype)
    return ops.sum(losses * real) / ops.sum(real)


def translate(model, source, max_length=12):
    """그리디 탐색입니다. 모든 행이 끝날 때까지 가장 그럴듯한 토큰을 씁니다. ID (batch, max_length - 1)을 돌려줍니다."""
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
# | 코드 | 장 | 논문 |
# | --- | --- | --- |
# | `position_table` | 8 | 3.5절 |
# | `padding_mask`, `look_ahead_mask` | 7 | 3.2.3절 |
# | `Attention` | 4~6 | 3.2절 |
# | `FeedForward`, `AddAndNorm`, `EncoderLayer`, `DecoderLayer` | 9 | 3.1절, 3.3절, 5.4절 |
# | `Transformer`: 임베딩, 위치, 가중치를 공유하는 출력 | 10 | 3.4절 |
# | `loss`(레이블 스무딩 없음) | 12a | 5.4절 |
# | `translate` | 10, 12b | |
#
# 틀리기 쉬운 곳이 네 군데 있습니다.
#
# - 임베딩에는 위치를 더하기 *전에* $\sqrt{d_{model}}$을 곱합니다.
# - 스코어는 모델의 폭이 아니라 *헤드 하나*의 폭의 제곱근으로 나눕니다.
# - 소프트맥스는 마지막 축인 키 방향으로 계산합니다.
# - 손실은 *진짜* 토큰의 수로 나눕니다. `ops.mean`은 모든 자리의 수로 나누므로, 패딩이 많은 배치의 손실이 작아집니다.

# %% [markdown]
# ## 번역할 문장을 만듭니다
#
# 문장은 12a장의 문법으로 만듭니다. 존댓말로 된 한국어와 그 영어 번역입니다. 이번에는 단어 하나가 토큰 하나이므로
# Python의 딕셔너리가 토크나이저를 대신합니다. ID 0은 패딩이고, 1은 번역문의 시작, 2는 끝입니다.

# %%
import itertools
import random

keras.utils.set_random_seed(16)

SUBJECTS = (
    "저는=I, 우리는=we, 그는=he, 그녀는=she, 그들은=they, 민수는=Minsu, "
    "지영은=Jiyoung, 학생은=the student, 의사는=the doctor, 제 친구는=my friend"
)
VERBS = {  # 영어의 세 형태: 한국어 어간, 현재, 과거, 미래, 그리고 목적어
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
    """표의 (한국어, 영어) 항목을 돌려줍니다."""
    return [entry.split("=") for entry in text.split(", ")]


def sentences(who, verb, thing):
    """주어, 동사, 목적어로 문장 12쌍을 만듭니다. 시제 셋, 부사의 있고 없음, 긍정과 부정입니다."""
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
print(f"학습 {len(train):,}쌍, 테스트 {len(test)}쌍, 단어 {len(words)}개")
print(" ".join(train[0][0]), "=", " ".join(train[0][1]))
assert not {str(pair) for pair in train} & {str(pair) for pair in test}


def ids_of(rows):
    """단어로 된 행의 ID를 돌려줍니다. (행, 가장 긴 행), 남는 자리는 0입니다."""
    longest = max(map(len, rows))
    return np.array([[number[word] for word in row] + [PAD] * (longest - len(row)) for row in rows], "int32")


source = ids_of([korean for korean, _ in train])
target = ids_of([["<s>", *english] for _, english in train])  # 디코더가 읽는 것
labels = ids_of([[*english, "</s>"] for _, english in train])  # 디코더가 답해야 하는 것
for name, row in (("source", source), ("target", target), ("labels", labels)):
    print(name, row[0])

# %% [markdown]
# ## 모델을 학습합니다
#
# 양쪽에 두 층씩, $d_{model} = 64$, 헤드는 넷, $d_{ff} = 128$입니다. Adam의 $\beta_2$와 $\varepsilon$은 논문과
# 같습니다. 이만큼 작은 모델에는 워밍업이 필요하지 않으므로 학습률은 계속 0.002입니다. 에포크가 끝날 때마다 모델은 한
# 번도 보지 못한 문장 하나를 번역합니다.

# %%
sizes = {"num_layers": 2, "d_model": 64, "num_heads": 4, "d_ff": 128}
model = Transformer(len(words), **sizes)
model.compile(keras.optimizers.Adam(0.002, beta_2=0.98, epsilon=1e-9), loss, jit_compile=False)


def text_of(row):
    """끝 앞의 단어를 돌려줍니다."""
    return " ".join(words[i] for i in itertools.takewhile(lambda i: i != END, row))


unseen = ids_of([korean for korean, _ in test])
references = [" ".join(english) for _, english in test]
print(" ".join(test[0][0]), "=", references[0])
losses = []
for epoch in range(1, 6):
    history = model.fit({"source": source, "target": target}, labels, batch_size=64, verbose=0)
    losses += history.history["loss"]
    print(f"{epoch}  손실 {losses[-1]:.3f}  {text_of(translate(model, unseen[:1])[0])}")

# %% [markdown]
# 이제 테스트 문장을 모두 번역합니다. 모델은 테스트의 단어를 모두 배웠지만, 테스트의 문장은 하나도 배우지 않았습니다.
# 테스트 문장의 주어, 동사, 목적어는 학습 문장에서 함께 나온 적이 없습니다.

# %%
translations = [text_of(row) for row in translate(model, unseen)]
exact = np.mean([a == b for a, b in zip(translations, references, strict=True)])
print(f"번역 {len(test)}개 가운데 {exact:.0%}가 단어 하나까지 맞습니다")
for i in range(0, 60, 12):
    print(f"  {' '.join(test[i][0])}  =  {translations[i]}")
assert exact > 0.8

# %% [markdown]
# ## 라이브러리도 같은 값을 냅니다
#
# `kt.Transformer`가 계산하는 함수도 똑같습니다. 크기가 같은 모델을 만들고 파라미터를 부품마다 복사합니다. 위의 코드는
# 부품에 라이브러리와 같은 이름을 붙였으므로 반복문 하나로 복사할 수 있습니다. 어텐션의 파라미터만 모양이 다릅니다.
# Keras는 헤드에 축을 따로 두어 `(d_model, num_heads, key_dim)`이고, 위의 코드는 `(d_model, d_model)`을 헤드로
# 나눕니다. 값의 순서는 같으므로 `reshape`만 하면 됩니다.

# %%
import matplotlib.pyplot as plt

import keras_transformer as kt
from keras_transformer.fonts import font_families


def copy_weights(plain, other):
    """위에서 쓴 모델의 파라미터를 크기가 같은 `kt.Transformer`에 복사합니다."""
    pairs = [(plain.embedding, other.source.tokens)]
    other_layers = [*other.encoder.layers, *other.decoder.layers]
    for layer, other_layer in zip([*plain.encoder, *plain.decoder], other_layers, strict=True):
        for name in ("self_attention", "cross_attention", "feed_forward"):
            if hasattr(layer, name):  # 인코더 층에는 교차 어텐션이 없습니다
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
print(f"자리 {real.sum():,}개, 로짓의 최댓값 {largest:.1f}, 가장 큰 차이 {difference:.1e}")
assert difference < 1e-5 * largest

# %% [markdown]
# 이 차이는 반올림 오차입니다. float32 덧셈의 순서가 다르기 때문입니다. 진짜 토큰의 자리만 비교했습니다. 패딩
# 자리에서는 두 모델의 값이 다르지만 아무도 읽지 않습니다. 손실은 그 자리를 빼고 계산하고, 마스크는 그 자리를
# 가립니다.
#
# 라이브러리의 그리디 탐색은 캐시(10장)가 있어서 토큰을 한 번씩만 읽습니다. 그래도 같은 문장을 씁니다.

# %%
found = library.generate(unseen, kt.Greedy(), max_length=11)
assert [text_of(row) for row in np.array(found.tokens)[:, 0]] == translations
print(f"번역 {len(translations)}개가 모두 같습니다")

# %% [markdown]
# ## 파라미터를 셉니다
#
# 이제 종이와 연필로 세어 봅시다. $V$는 단어의 수, $N$은 한쪽의 층수, $d$는 $d_{model}$입니다.
#
# | 부품 | 파라미터의 수 | 이유 |
# | --- | --- | --- |
# | 임베딩 | $V d$ | 단어마다 벡터가 하나입니다. 원문, 번역문, 출력이 함께 씁니다 |
# | 어텐션 하나 | $4 (d^2 + d)$ | 쿼리, 키, 밸류, 출력에 $d \times d$ 행렬과 편향이 하나씩 있습니다 |
# | 피드 포워드 신경망 하나 | $2\, d\, d_{ff} + d_{ff} + d$ | 넓은 층으로 가는 행렬과 돌아오는 행렬, 편향 두 개입니다 |
# | 층 정규화 하나 | $2 d$ | $\gamma$와 $\beta$입니다 |
# | 인코더 층 | 어텐션 1개, 신경망 1개, 정규화 2개 | |
# | 디코더 층 | 어텐션 2개, 신경망 1개, 정규화 3개 | |
#
# 헤드의 수는 식에 없습니다. 64차원 헤드 여덟 개의 열은 512차원 헤드 하나의 열과 수가 같습니다. 위치도 식에 없습니다.
# 사인은 학습하지 않고 계산하기 때문입니다. 문장의 길이도 식에 없습니다.


# %%
def counted(V, N, d, d_ff):
    """부품마다 파라미터의 수를 돌려줍니다."""
    attention, network, norm = 4 * (d * d + d), 2 * d * d_ff + d_ff + d, 2 * d
    return {
        "임베딩": V * d,
        "셀프 어텐션": 2 * N * attention,
        "교차 어텐션": N * attention,
        "피드 포워드": 2 * N * network,
        "층 정규화": 5 * N * norm,
    }


small = counted(len(words), 2, 64, 128)
print(f"이 모델: {sum(small.values()):,}")
assert sum(small.values()) == model.count_params() == library.count_params()

base = counted(37_000, 6, 512, 2048)
for part, count in base.items():
    print(f"{part:>16} {count:12,}")
print(f"{'base':>16} {sum(base.values()):12,}")
assert sum(base.values()) == kt.Transformer.from_preset("base", 37_000).count_params()

# %% tags=["hide-input"]
labels_of_axes = ("에포크", "손실 (토큰당 nat)", "파라미터의 비율", "이 모델", "base")
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
# **그림 읽기.** 왼쪽을 보면 네 에포크로 충분합니다. 오른쪽을 보면 `base`에서는 피드 포워드 신경망에 파라미터의 40%가
# 있고, 임베딩에 30%가 있습니다. 작은 모델에서는 어텐션에 더 많이 있습니다. $d_{ff}$가 $d_{model}$의 네 배가 아니라 두
# 배이기 때문입니다.
#
# `base`의 파라미터를 세면 6,300만 개입니다. 논문의 표 3은 6,500만 개라고 합니다. 다른 크기는 모두 표에 있으므로 먼저
# 확인할 것은 어휘의 크기입니다. 5.1절은 어휘가 "약 37000개 토큰"이라고 합니다. 첫째 연습 문제에서 맞는 크기를 찾아
# 봅시다.

# %% [markdown]
# ## 연습 문제
#
# ### 5분 문제
#
# 1. 논문의 표 3에서 파라미터는 `base`가 6,500만 개, `big`($d_{model} = 1024$, $d_{ff} = 4096$)이 2억 1,300만 개이고,
#    100만 개 단위로 반올림한 값입니다. 각각 어휘가 몇 개이면 맞을까요? (`counted(0, ...)`은 임베딩을 뺀 수입니다.) 둘
#    다 맞는 크기가 있을까요? 나머지 행은 풀이에서 확인합니다.
# 2. `decode`에서 룩어헤드 마스크를 빼고 다시 학습해 봅시다(코드 몇 줄이고, 학습은 1분이 안 걸립니다). 먼저 예상해
#    봅시다. 손실은 여전히 내려갈까요? 번역은 여전히 맞을까요?
# 3. 패딩이 문장을 바꿀까요? 원문에 0으로 된 열을 열 개 더하고 로짓을 비교해 봅시다.

# %% tags=["hide-cell"]
# 1. 표의 값은 100만 개 단위로 반올림했으므로, 값 하나에 맞는 어휘의 크기는 여러 개입니다. 토큰 41,000개쯤이면 `big`을
#    뺀 모든 행이 맞고, `big`에는 36,000개쯤이 맞습니다. 그러므로 표 전체에 맞는 어휘는 없고, 37,000개는 어느 행에도
#    맞지 않습니다. 논문은 그 이유를 말하지 않습니다. 층의 파라미터는 맞게 셌습니다. 2층, 4층, 6층, 8층의 값이 서로
#    맞기 때문입니다.
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
    print(row, f"{fit[0]:,}개부터 {fit[-1]:,}개까지")
*others, big = (set(fit) for fit in fitting.values())
shared = set.intersection(*others)
print(f"big을 뺀 나머지: {min(shared):,}개부터 {max(shared):,}개까지")
assert 40_900 < min(shared) <= max(shared) < 41_200 and max(big) < 37_000


# 2. 손실은 전과 똑같이 거의 0까지 내려가지만, 맞는 번역은 거의 없습니다. 학습할 때는 자리마다 답해야 할 단어를 미리
#    읽습니다. 번역문의 바로 다음 단어이기 때문입니다. 모델이 직접 쓸 때는 다음 단어가 아직 없습니다. 그러므로 마스크가
#    틀렸는지 손실만 보아서는 알 수 없고, 번역을 보아야 합니다.
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
print(f"손실 {history.history['loss'][-1]:.3f}, 맞는 번역 {found:.0%}: {guesses[0]}")
assert found < 0.1 < exact

# 3. 바꾸지 않습니다. 마스크가 패딩인 키의 스코어를 -1e9로 만들므로, 가중치는 정확히 0입니다.
longer = {"source": np.pad(batch["source"], ((0, 0), (0, 10))), "target": batch["target"]}
padded = ops.convert_to_numpy(model(longer))[real]
print(f"가장 큰 차이 {np.abs(padded - logits).max():.1e}")
assert np.abs(padded - logits).max() < 1e-5 * largest

# %% [markdown]
# ### 한 시간 문제
#
# 문장 한 쌍의 로짓 `(target_len, words)`를 NumPy로 구하는 `transformer(embedding, encoder, decoder, source, target,
# num_heads)`를 작성합니다. `encoder`와 `decoder`는 층마다 딕셔너리가 하나씩 있는 리스트입니다. 딕셔너리의 키는 9장과
# 같고, 디코더 층에는 `cross_attention`의 키도 있습니다. ID 0은 패딩이고 원문에만 있습니다. 6장과 9장에서 작성한
# 함수에서 시작합니다. 이제 어텐션에는 편향과 마스크도 있어야 합니다. 위치는 8장의 회전이 아니라 사인과 코사인의 표를
# 씁니다. `embedding`의 모양은 `(words, d_model)`입니다.
#
# `answer.py`에 NumPy만으로 작성합니다. `python course/check.py 16 answer.py`를 실행하면 맞는 성질과 틀린 성질을 알려
# 줍니다. 풀이는 공개하지 않습니다.
#
# ### 프로젝트
#
# 논문이 설명하지 않는 것 하나를 코드에서 바꿉니다. 임베딩의 $\sqrt{d_{model}}$, 임베딩과 공유하는 출력, ReLU, 엡실론,
# 정규화의 위치 가운데 고릅니다. 있을 때와 없을 때를 시드 셋씩 학습하고, 그 차이가 시드 둘 사이의 차이보다 큰지
# 말합니다.

# %% [markdown]
# ## 더 읽을거리
#
# - Vaswani et al., 2017, ["Attention Is All You Need"](https://arxiv.org/abs/1706.03762): 이제 전부 읽을 수 있습니다.
#   표 3에는 크기를 바꾸어 가며 잰 번역 품질이 있습니다.
# - Rush, 2018, ["The Annotated Transformer"](https://nlp.seas.harvard.edu/2018/04/03/attention.html): 논문을 한 줄씩
#   PyTorch로 옮긴 글
# - Karpathy, [nanoGPT](https://github.com/karpathy/nanoGPT): 파일 하나로 된 언어 모델, 디코더만 씁니다
# - 이 라이브러리의 문서: *Building blocks*(어느 부품을 무엇으로 바꿀 수 있는지), *Training*(같은 모델을 실제 말뭉치로
#   학습합니다)
# - 마지막 장입니다. 이제 여러분의 모델에 이 강의의 질문을 해 봅시다.
