# %% [markdown]
# # 15. 열린 질문: 어텐션은 설명인가?
#
# 이 장을 마치면 2019년에 있었던 논쟁의 양쪽 주장을 알고, 그 핵심 실험을 직접 해 볼 수 있습니다. 어텐션 가중치를
# 중요도의 다른 두 척도와 비교하고, 가중치를 뒤섞어 보고, 가중치 없이 모델을 학습해 봅니다. 마지막에는 분명한
# 대답이 나옵니다.
#
# **먼저 읽을 것:** 13장(어텐션 읽기).

# %% [markdown]
# ## 어텐션 가중치로 이유를 설명할 수 있을까요?
#
# 은행의 모델이 대출을 거절합니다. 왜일까요? 어텐션 가중치를 보여 주면서 "이 단어들 때문입니다"라고 말하고
# 싶어집니다. 그런데 그 말은 사실일까요?
#
# - Jain과 Wallace(2019), "Attention is not Explanation"은 아니라고 합니다. 설명이라면 중요도의 다른 척도와 일치해야
#   하고, 가중치가 달라지면 답도 달라져야 합니다. 그들의 모델에서는 둘 다 성립하지 않는 경우가 많았습니다.
# - Wiegreffe와 Pinter(2019), "Attention is not not Explanation"은 성급하다고 답합니다. 먼저 모델에 어텐션이
#   필요하기는 한지 물어야 하고, 다른 설명이 가능하다고 해서 첫 설명이 틀린 것은 아니라고 합니다.
#
# 두 논문의 실험을 따라 해 봅시다. 그러려면 모델 하나와, 정답의 이유를 아는 문제가 필요합니다.

# %% [markdown]
# ## 프로그램이 쓰는 영화평으로 실험합니다
#
# 영화평은 "the plot was not good" 같은 절 세 개로 되어 있습니다. 형용사는 좋거나 나쁘고, *not*은 그것을
# 뒤집습니다. 절이 둘 이상 긍정이면 긍정적인 평입니다. 그래서 우리는 어떤 단어가 답을 *정하는지* 압니다. 형용사와
# *not*입니다. 명사는 아무 영향도 없습니다.

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
    """영화평을 씁니다. 단어들과 레이블을 돌려줍니다. 레이블은 긍정이면 1.0, 아니면 0.0입니다."""
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
# ## 어텐션 하나를 읽을 수 있는 분류기를 만듭니다
#
# 논쟁에 나온 모델에는 인코더가 있고, 그 위에서 어텐션 하나가 모든 상태를 벡터 하나로 모읍니다. 우리도 그렇게 만듭니다.
# 라이브러리의 임베딩, 위치, 인코더 층 하나를 쓰고, 그 위는 다음과 같습니다.
#
# $$\alpha = \text{softmax}(s_1, \ldots, s_n), \qquad z = w^\top \sum_j \alpha_j h_j + b$$
#
# 어텐션 스코어 $s_j$는 상태 $h_j$를 읽는 작은 신경망에서 나옵니다. $w$와 $b$는 마지막 밀집층의 파라미터입니다. $z$는
# 로짓이고, 양수이면 "좋은 평"입니다. 나중에 `answer`에 다른 가중치 $\alpha$를 넣으려고 단계를 메서드로 나눕니다.
# `uniform=True`이면 모든 스코어가 0이므로 모든 단어의 어텐션 가중치가 같습니다.


# %%
class Reader(keras.Model):
    """인코더, 그 상태에 대한 어텐션 하나, 로짓 하나로 된 모델입니다."""

    def __init__(self, uniform=False):
        super().__init__()
        self.uniform = uniform
        self.embedding = kt.layers.TokenEmbedding(len(vocabulary), 32)
        self.positions = kt.layers.PositionalEncoding()
        self.encoder = kt.layers.Encoder(1, num_heads=2, d_ff=64, dropout=0.0, normalize_first=True)
        self.scorer = keras.Sequential([keras.layers.Dense(32, "tanh"), keras.layers.Dense(1)])
        self.head = keras.layers.Dense(1)

    def states(self, embedded, mask):
        """인코더의 상태입니다. `mask`가 True인 단어만 볼 수 있습니다."""
        return self.encoder(self.positions(embedded), padding_mask=mask)

    def weights_of(self, states, mask):
        """어텐션 가중치 `(batch, length)`입니다."""
        scores = self.scorer(states)[..., 0] * (0.0 if self.uniform else 1.0)
        return keras.ops.softmax(keras.ops.where(mask, scores, -1e30))

    def answer(self, states, weights):
        """가중 평균의 로짓입니다."""
        # b는 영화평, l은 단어, d는 성분입니다. 단어에 대해 가중치와 상태를 곱해 더합니다.
        return self.head(keras.ops.einsum("bl,bld->bd", weights, states))[:, 0]

    def logits(self, embedded, mask):
        """임베딩 다음의 모든 단계입니다."""
        states = self.states(embedded, mask)
        return self.answer(states, self.weights_of(states, mask))

    def call(self, ids):
        return self.logits(self.embedding(ids), ids != 0)


def trained(seed, uniform=False):
    """이 시드로 모델을 학습하고 테스트 정답률을 출력합니다."""
    keras.utils.set_random_seed(seed)
    model = Reader(uniform)
    model.compile(keras.optimizers.Adam(2.5e-3), keras.losses.BinaryCrossentropy(from_logits=True))
    model.fit(ids[:3000], labels[:3000], batch_size=40, epochs=10, verbose=0)
    right = np.mean((np.array(model(test)) > 0) == (test_labels > 0))
    print(f"시드 {seed}, 균등: {uniform}. 정답률 {right:.0%}")
    assert right > 0.75
    return model


model = trained(seed=1)

# %% [markdown]
# ## 중요도의 세 가지 척도
#
# 영화평의 단어마다 다음을 계산합니다.
#
# 1. **어텐션**: 어텐션 가중치 $\alpha_j$.
# 2. **하나 빼기**(leave-one-out): 단어를 가리고 로짓이 얼마나 움직이는지 봅니다. 모델에 대한 실험입니다. 그
#    단어가 없으면 *무슨 일이 일어나는지* 말해 줍니다.
# 3. **기울기 × 입력**(gradient × input): 임베딩 $x_j$에 대한 $|\nabla_{x_j} z \cdot x_j|$. 임베딩이 0으로
#    줄어들 때 로짓이 얼마나 움직일지를 기울기로 짐작합니다.


# %%
def attention(model):
    """테스트에 나오는 단어들의 가중치 `(reviews, length)`입니다."""
    states = model.states(model.embedding(test), real)
    return np.array(model.weights_of(states, real))


def leave_one_out(model):
    """단어를 가리면 로짓이 얼마나 움직이는지입니다."""
    embedded = model.embedding(test)
    whole = np.array(model.logits(embedded, real))
    places = np.arange(length)
    return (
        np.stack([abs(whole - np.array(model.logits(embedded, real & (places != i)))) for i in places], 1)
        * real
    )


def gradient_times_input(model):
    """임베딩이 자기 방향으로 움직일 때 로짓이 얼마나 변하는지를 기울기로 구합니다."""
    embedded = tf.convert_to_tensor(model.embedding(test))
    with tf.GradientTape() as tape:
        tape.watch(embedded)
        total = tf.reduce_sum(model.logits(embedded, real))
    return np.abs(np.sum(tape.gradient(total, embedded) * embedded, -1)) * real


measures = {
    "어텐션": attention(model),
    "하나 빼기": leave_one_out(model),
    "기울기 × 입력": gradient_times_input(model),
}
shown = int(np.argmax((test == number["not"]).sum(-1)))  # "not"이 가장 많은 평
words = [vocabulary[i] for i in test[shown] if i]

# %% tags=["hide-input"]
plt.rcParams["font.family"] = font_families(*measures)
colours = ("#3a6ea5", "#d1603d", "#2a9d8f")
figure, panels = plt.subplots(3, 1, figsize=(9, 5), sharex=True, layout="constrained")
for axes, (name, values), colour in zip(panels, measures.items(), colours, strict=True):
    row = values[shown, : len(words)]
    axes.bar(range(len(words)), row / row.sum(), color=colour)
    axes.set(title=name, ylabel="비율", ylim=(0, 1))
panels[-1].set_xticks(range(len(words)), words, rotation=60)
plt.show()

# %% [markdown]
# **그림 읽기.** 세 그림을 단어마다 비교해 봅시다. 같은 단어를 같은 정도로 가리킬까요? 어텐션은 한두 단어에 거의 모든
# 것을 주는 일이 많지만, 하나씩 빼 보면 중요한 단어가 더 있습니다. *was*나 *and*처럼 아무것도 정하지 않는 단어에
# 어텐션이 가 있는 평도 있습니다. 인코더가 이미 단어를 섞었기 때문에, *and* 자리의 상태에 *awful*의 내용이 들어 있을 수
# 있습니다(13장).

# %% [markdown]
# ## 세 척도는 일치할까요?
#
# 값이 아니라 순서를 비교합니다. 단어를 척도마다 중요한 순서로 세웁니다. *켄달*(Kendall)의 $\tau$(타우)는 단어 쌍을
# 셉니다. 순서가 같은 쌍은 +1, 반대인 쌍은 −1로 하여 평균을 냅니다. $\tau = 1$이면 순서가 같고, 0이면 관계가 없으며,
# −1이면 반대입니다. Jain과 Wallace도 이 척도를 썼습니다.


# %%
def kendall(first, second):
    """두 행의 켄달 순위 상관입니다."""
    i, j = np.triu_indices(len(first), 1)
    return np.mean(np.sign(first[i] - first[j]) * np.sign(second[i] - second[j]))


assert kendall(np.array([1, 2, 3]), np.array([10, 20, 30])) == 1
assert kendall(np.array([1, 2, 3]), np.array([30, 20, 10])) == -1
np.testing.assert_allclose(
    kendall(np.array([1, 2, 3]), np.array([2, 1, 3])), 1 / 3
)  # 세 쌍 가운데 하나가 뒤집혔습니다


def agreement(first, second):
    """영화평마다의 켄달 상관입니다."""
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
axes.set(xlabel="영화평 하나의 켄달 τ", ylabel="영화평의 수")
axes.legend(loc="upper left")
plt.show()

# %% [markdown]
# **그림 읽기.** 각 윤곽선이 얼마나 오른쪽에 있는지 봅시다. 어텐션이 곧 설명이라면 그 윤곽선은 1에 있어야 합니다.
# 실제로는 0과 1 사이에 있습니다. 어텐션은 중요도와 관계가 있지만 같은 것은 아닙니다. 다른 두 척도끼리는 조금 더 잘
# 맞습니다. Jain과 Wallace가 실제 영화평에서 얻은 결과와 같습니다. 그 둘도 완벽하지는 않습니다.

# %% [markdown]
# ## 어텐션 가중치를 뒤섞어 봅니다
#
# Jain과 Wallace의 둘째 실험입니다. 가중치가 답의 이유라면, 가중치가 달라지면 답도 달라져야 합니다. 상태는 그대로 두고
# 단어들의 가중치를 스무 번 뒤섞어 확률이 얼마나 움직이는지 봅니다.


# %%
def probability(logits):
    """좋은 평일 확률입니다."""
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
print(f"0.1보다 적게 움직인 평: {np.mean(moves < 0.1):.0%}")
print(f"0.5보다 많이 움직인 평: {np.mean(moves > 0.5):.0%}")
assert 0 < moves.max() <= 1

# %% [markdown]
# 어떤 평에서는 가중치가 아주 중요하고, 어떤 평에서는 거의 상관이 없습니다. 그런 평에서는 어디를 보든 모든 상태가
# 같은 말을 합니다. 같은 모양의 가중치가 한 평에서는 결정적이고 다른 평에서는 아무 뜻이 없을 수 있습니다.

# %% [markdown]
# ## 모델에 어텐션이 필요하기는 할까요?
#
# Wiegreffe와 Pinter는 먼저 두 가지를 묻습니다.
#
# 1. 같은 모델을 *균등한* 가중치로 학습합니다. 성능이 같다면 이 문제에는 이 어텐션이 필요 없고, 거기서 설명을 찾을
#    까닭도 없습니다.
# 2. 같은 모델을 다른 시드로 학습합니다. 가중치가 다른데도 같은 답을 낸다면, 가중치가 다르다는 사실로 증명할 수 있는
#    것은 별로 없습니다.

# %%
other = trained(seed=2)
uniform = trained(seed=1, uniform=True)
same_answer = np.mean((np.array(model(test)) > 0) == (np.array(other(test)) > 0))
print(f"두 시드: 같은 답 {same_answer:.0%}")
print(f"어텐션의 켄달 τ: {agreement(by_attention, attention(other)).mean():.2f}")
assert agreement(by_attention, attention(other)).mean() < 0.8

# %% [markdown]
# 균등 가중치로 학습한 모델도 성능이 비슷합니다. 일은 아래의 인코더가 하고, 위의 어텐션은 그 결과를 모으는 여러 방법
# 가운데 하나일 뿐입니다. 그리고 두 시드는 서로 다른 가중치로 거의 같은 답을 냅니다. 이 모델에서 위쪽 가중치는 한 번의
# 학습에서 생긴 습관에 가깝고, 그것만 보고 답의 이유를 말할 수는 없습니다.
#
# 모든 모델이 그런 것은 아닙니다. 13장에서는 단어와 단어를 잇는 것이 어텐션뿐이었고, 모델은 어텐션 없이는 문제를 풀 수
# 없었습니다. 그래서 가중치와 정답이 맞아떨어졌습니다.

# %% [markdown]
# ## 어텐션은 어디를 읽는지 말해 줄 뿐입니다
#
# - **어텐션 가중치는 층이 어디를 읽는지 말해 줍니다. 모델이 왜 그렇게 답하는지는 말해 주지 않습니다.** 둘
#   사이에는 밸류, 다른 헤드, 다른 층, 잔차 연결이 있습니다.
# - 가중치는 *추측*에 쓸모가 있습니다. 그 추측이 맞는지는 모델로 확인해야 합니다. 단어를 가리거나 바꾸고 답을 봅니다.
# - 어텐션을 거치지 않는 길이 적을수록 가중치는 더 큰 의미를 지닙니다. 그러니 늘 이렇게 물어보아야 합니다. 모델은 이
#   어텐션 없이도 문제를 풀 수 있을까요?
# - 다른 척도에도 흠이 있습니다. 하나 빼기는 다른 단어가 같은 말을 하면 그 단어를 놓치고, 기울기는 포화된(saturated) 것,
#   곧 이미 한쪽 끝에 있어서 조금 바꾸어도 변하지 않는 것을 놓칩니다. 여러 척도가 일치하면 그때부터 믿어 볼 만합니다.
# - 대출처럼 사람에 관한 결정에는 가중치 그림만으로 충분하지 않습니다.

# %% [markdown]
# ## 연습 문제
#
# ### 5분 문제
#
# 이 문제에서는 어떤 단어가 답을 정하는지 우리가 압니다. 형용사와 *not*입니다. 영화평마다 그런 단어의 수를 $k$라고
# 합시다. 세 척도에서 각각 가장 중요한 단어 $k$개를 고르면, 그 가운데 몇 개가 그런 단어일까요? 우연이라면 얼마일까요?
# 결과는 이 장의 내용과 맞을까요?

# %% tags=["hide-cell"]
deciding = np.isin(test, [number[word] for word in ("not", *GOOD, *BAD)])
by_chance = (deciding.sum(-1) / real.sum(-1)).mean()
for name, values in measures.items():
    found = [
        chosen[np.argsort(-row)[: chosen.sum()]].mean() for row, chosen in zip(values, deciding, strict=True)
    ]
    print(f"{name}: {np.mean(found):.2f}")
    assert np.mean(found) > by_chance
print(f"우연: {by_chance:.2f}")
# 이 장의 내용과 맞습니다. 세 척도 모두 우연보다 훨씬 잘 찾습니다. 우리가 실행했을 때는 하나 빼기가 0.85로 가장
# 높고, 어텐션이 0.78, 기울기 × 입력이 0.73, 우연이 0.26이었습니다. 하나 빼기는 모델을 직접 실험하므로 앞서는
# 것이 자연스럽습니다. 어텐션이 기울기 × 입력보다 높은 것은 추측의 출발점으로 쓸 만하다는 뜻입니다. 그렇다고
# 어텐션이 설명이 되지는 않습니다. 이 문제는 답을 정하는 단어가 위쪽 k개에 있는지만 묻습니다. 단어들의 순서가
# 맞는지는 묻지 않고(켄달 τ는 0.4에 못 미쳤습니다), 모델에 그 가중치가 필요한지도 묻지 않습니다. 균등 가중치로
# 학습한 모델도 같은 문제를 풀었습니다.

# %% [markdown]
# ### 한 시간 문제
#
# 서로 다른 가중치가 같은 출력을 낼 수 있습니다. 쿼리 하나를 위한 `other_weights(values, weights)`를 작성합니다.
# `values`는 `(length, d)`이고 `length`는 $d + 1$보다 큽니다. `weights`는 `(length,)`입니다. 음수가 아니고 합이 1이며
# 같은 출력을 내는 다른 가중치를 돌려줍니다. 그 가운데 적어도 하나는 0이어야 합니다. (가중치를 어느 방향으로 바꾸면
# 합도 출력도 그대로일까요?)
#
# `answer.py`에 NumPy만으로 작성합니다. `python course/check.py 15 answer.py`를 실행하면 맞는 성질과 틀린 성질을 알려
# 줍니다. 풀이는 공개하지 않습니다.
#
# ### 프로젝트
#
# 직접 만든 텍스트 분류기(14장 또는 체크포인트)를 고릅니다. 결과를 보기 전에, 글 열 편에서 어느 단어가 결정적인지
# 사람들에게 묻습니다. 어텐션, 기울기 × 입력, 단어 빼기, 그리고 균등 가중치로 학습한 모델과 비교합니다. 이 모델 때문에
# 대출을 거절당한 사람에게 무엇을 보여 주겠습니까?

# %% [markdown]
# ## 더 읽을거리
#
# - Jain, Wallace, 2019, ["Attention is not Explanation"](https://arxiv.org/abs/1902.10186)
# - Wiegreffe, Pinter, 2019, ["Attention is not not Explanation"](https://arxiv.org/abs/1908.04626)
# - Abnar, Zuidema, 2020, ["Quantifying Attention Flow in Transformers"](https://arxiv.org/abs/2005.00928): 모든
#   층을 따라가며 가중치를 보는 방법
# - 이 라이브러리의 문서: *What matters to a model*(`kt.explain`은 번역기와 분류기에 대해 하나 빼기, 기울기 ×
#   입력, 어텐션 롤아웃을 계산합니다), *Attention viewer*
# - 다음 장: **16. 한 페이지에 담은 모델 전체**
