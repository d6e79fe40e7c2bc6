# %% [markdown]
# # 2. 루옹의 닷 프로덕트 어텐션
#
# 이 장을 마치면 트랜스포머 이전의 순환 신경망 번역기가 쓰던 어텐션을 직접 구현할 수 있습니다. 네 줄이면 되고, 그중 세
# 줄은 지금도 모든 트랜스포머에서 쓰입니다. 어느 단어를 보아야 하는지 모델이 스스로 알아내는 모습도 봅니다.
#
# **먼저 읽을 것:** 1장(왜 어텐션인가). 두 벡터의 내적과 $e^x$를 알면 됩니다. 마지막 부분에서 작은 모델을 학습하므로
# Keras의 `keras.Input`, `compile`, `fit`을 본 적이 있으면 좋습니다.

# %% [markdown]
# ## 어텐션 가중치 0.8은 어떻게 구할까요?
#
# 1장에서는 상태의 가중합을 구했습니다. 단어 "I"를 쓸 때 인코더의 상태 $h_0$(저는)의 가중치가 0.8이고, $h_1$과 $h_2$의
# 가중치는 각각 0.1이었습니다. 이런 가중치를 *어텐션 가중치*(attention weight)라고 합니다. 그때는 이 가중치를 우리가
# 정했습니다. 이제 모델이 단어를 쓸 때마다 스스로 계산하게 합니다.
#
# 루옹(Luong) 등이 2015년에 내놓은 어텐션은 두 벡터를 비교합니다. $s$는 디코더의 상태로, 지금까지 무엇을 썼고 이제
# 무엇을 쓰려는지 나타냅니다. $h_0, h_1, h_2$는 인코더의 상태로, 원문에 무엇이 있는지 나타냅니다. 둘이 잘 맞는 곳을
# 보면 됩니다.
#
# 여기서는 상태를 3차원 벡터로 둡니다. 한눈에 알아볼 수 있도록 값을 골랐습니다. $h$는 저마다 방향이 다르고, $s$는
# 자기에게 필요한 $h$ 쪽을 가리킵니다. 실제 모델에서는 순환 신경망이 둘을 계산합니다.

# %%
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import matplotlib.pyplot as plt
import numpy as np

import keras_transformer as kt
from keras_transformer.fonts import font_families

keras.utils.set_random_seed(2)
random = np.random.default_rng(2)

source = ["저는", "학생", "입니다"]
target = ["I", "am", "a", "student"]
h = np.array([[2.0, 0, 0], [0, 2.0, 0], [0, 0, 2.0]])  # 인코더의 상태, 원문의 단어마다 한 행
s = np.array(
    [[1.04, 0, 0], [0, 0, 1.04], [0, 0.35, 0.35], [0, 1.04, 0]]
)  # 디코더의 상태, 번역문의 단어마다 한 행

# %% [markdown]
# ## 1단계: 어텐션 스코어를 구합니다
#
# 어텐션 스코어(attention score)는 두 상태의 내적입니다. $\mathrm{score}(s, h_j) = s^\top h_j$. 두 벡터의 방향이 같으면
# 커집니다.

# %%
scores = s[0] @ h.T
print("'I'의 어텐션 스코어:", scores)
np.testing.assert_allclose(scores, [np.log(8), 0, 0], atol=0.01)

# %% [markdown]
# ## 2단계: 소프트맥스로 어텐션 분포를 구합니다
#
# 소프트맥스(softmax)는 스코어를 어텐션 가중치로 바꿉니다. 단어 하나를 쓸 때의 가중치를 모은 것이
# *어텐션 분포*(attention distribution)입니다.
# $e^{2.08} = 8$이고 $e^0 = 1$이므로 가중치는 $8/10$, $1/10$, $1/10$입니다. (왜 소프트맥스인지는 3장에서 설명합니다.
# 코드는 먼저 모든 스코어에서 가장 큰 스코어를 뺍니다. 결과는 같고, $e^x$가 너무 커지지 않습니다.)


# %%
def softmax(scores):
    """스코어의 행마다 합이 1인 어텐션 가중치로 바꿉니다."""
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


weights = softmax(scores)
print("'I'의 어텐션 분포:", weights.round(2))
np.testing.assert_allclose(weights, [0.8, 0.1, 0.1], atol=0.005)

# %% [markdown]
# ## 3단계: 컨텍스트 벡터를 구합니다
#
# *컨텍스트 벡터*(context vector) $a$는 인코더의 상태에 어텐션 가중치를 곱해 더한 가중합입니다. *어텐션
# 값*(attention value)이라고도 합니다. $h_j$의 가중치가 $w_j$이면 $a = \sum_j w_j h_j$입니다.

# %%
context = weights @ h
print("'I'의 컨텍스트 벡터:", context.round(2))
np.testing.assert_allclose(context, 0.8 * h[0] + 0.1 * h[1] + 0.1 * h[2], atol=0.01)

# %% [markdown]
# ## 4단계: 디코더의 상태와 합칩니다
#
# 이제 벡터가 두 개입니다. $a$는 원문의 이 부분에 무엇이 있는지, $s$는 지금까지 무엇을 썼는지 알려 줍니다. 디코더는
# 둘을 이어 붙이고($[a; s]$), 학습하는 행렬 $W_c$를 곱하고 편향 $b_c$를 더한 다음, 결과를 −1과 1 사이의 값으로
# 만듭니다.
#
# $$\tilde s = \tanh(W_c [a; s] + b_c)$$
#
# 출력층은 $\tilde s$로 다음 단어를 계산합니다. (코드에서는 벡터를 행으로 쓰므로 행렬이 오른쪽에 옵니다. 여기서 행렬은
# 난수이고 $b_c$는 0입니다.)

# %%
w_c = random.normal(size=(6, 3)) / np.sqrt(6)  # 3 + 3차원에서 3차원으로
b_c = np.zeros(3)
s_tilde = np.tanh(np.concatenate([context, s[0]]) @ w_c + b_c)
print("'I'의 s̃:", s_tilde.round(3))

# %% [markdown]
# ## 모든 단어를 한꺼번에 계산합니다
#
# 학습할 때는 번역문의 단어를 모두 알고 있으므로 모든 행을 한꺼번에 계산할 수 있습니다. 한국어와 영어는 어순이
# 다릅니다. "am"은 마지막 단어 "입니다"를 보고, "student"는 가운데 단어를 봅니다. "a"는 한국어에 짝이 없어서 두 단어를
# 봅니다.


# %%
def luong_attention(s, h, w_c, b_c):
    """디코더의 모든 상태에 대한 루옹 어텐션."""
    weights = softmax(s @ h.T)
    context = weights @ h
    return np.tanh(np.concatenate([context, s], axis=-1) @ w_c + b_c), weights


outputs, alignment = luong_attention(s, h, w_c, b_c)
np.testing.assert_allclose(outputs[0], s_tilde)
for word, row in zip(target, alignment.round(2), strict=True):
    print(f"{word:8}", dict(zip(source, row.tolist(), strict=True)))

# %% [markdown]
# ## 라이브러리로 확인합니다
#
# `kt.layers.LuongAttention`이 이 층입니다. 루옹 등의 논문처럼 $b_c$는 없습니다. Keras는 어텐션 가중치를 *attention
# scores*라고 부르며, `return_attention_scores=True`를 주면 층이 어텐션 가중치도 돌려줍니다. 즉 Keras에서 말하는
# attention scores는 소프트맥스를 통과한 값입니다. 이 강의에서 어텐션 스코어는 소프트맥스를 통과하기 전의 값입니다.

# %%
layer = kt.layers.LuongAttention()
# `[None]`은 맨 앞에 축을 하나 더합니다. 문장 쌍 하나로 된 배치입니다. (1, 단어 수, 차원)
queries, memory = s[None].astype("float32"), h[None].astype("float32")
layer.build(queries.shape, memory.shape)
layer.set_weights([w_c])
result, shares = layer(queries, memory, return_attention_scores=True)
np.testing.assert_allclose(result[0], outputs, atol=1e-5)
np.testing.assert_allclose(shares[0, 0], alignment, atol=1e-5)

# %% [markdown]
# ## 오늘날에는 쿼리, 키, 밸류라고 부릅니다
#
# 트랜스포머 논문의 용어로 $s$는 **쿼리**(query)입니다. $h$는 저마다 **키**(key)이면서 동시에 **밸류**(value)입니다.
# $s$와 비교할 때는 키이고, 가중합을 구할 때는 밸류입니다. 이 용어로 쓰면 1~3단계는 함수 호출 한 번으로 끝납니다.
# `scale=1.0`은 스코어를 그대로 쓰라는 뜻입니다(5장).

# %%
# `[:, None]`은 배치 축 뒤에 헤드 하나의 축을 더합니다(6장). (1, 1, 단어 수, 차원)
by_names, _ = kt.layers.dot_product_attention(queries[:, None], memory[:, None], memory[:, None], scale=1.0)
np.testing.assert_allclose(by_names[0, 0], alignment @ h, atol=1e-5)

# %% [markdown]
# ## 모델이 스스로 찾아낼까요?
#
# $s$와 $h$는 우리가 골랐습니다. 실제 모델에게는 어느 단어가 어느 단어의 짝인지 아무도 알려 주지 않습니다. 모델은 문장
# 쌍만 보고, 나머지는 기울기(gradient)를 따라 배웁니다. 작은 과제로 확인해 봅시다. 원문은 무작위 단어 여섯 개이고,
# 번역문은 같은 단어를 거꾸로 늘어놓은 것입니다. 가장 먼저 쓸 단어는 원문의 마지막 단어입니다. 가장 나중에 쓸 단어는
# 원문의 첫 단어인데, 마지막 상태에는 이 단어가 이미 흐려져 있습니다.
#
# 인코더와 디코더는 LSTM입니다(Hochreiter, Schmidhuber, 1997). LSTM은 1장에서 본 것과 같은 순환 신경망인데, 단계마다
# 상태에서 무엇을 남기고 무엇을 지울지도 배우므로 더 늦게 잊습니다. 여기서는 층으로만 씁니다. 단어 벡터가 들어가고
# 단어마다 상태가 나옵니다.
#
# 디코더는 인코더의 마지막 상태에서 시작하고, 써야 할 단어의 바로 앞 단어를 읽습니다. 첫 단어 앞에는 시작을 나타내는
# ID 1을 둡니다. 어텐션은 위에서 본 층입니다. $s$는 디코더의 상태, $h$는 인코더의 상태입니다. 가중치는 나중에 보려고
# `learned`에 담아 둡니다.

# %%
length, vocab_size, begin = 6, 12, 1
sources = random.integers(2, vocab_size, size=(4000, length))
targets = sources[:, ::-1]
shifted = np.concatenate([np.full((4000, 1), begin), targets[:, :-1]], axis=1)  # 바로 앞 단어

read, written = keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="int32")
embed = keras.layers.Embedding(vocab_size, 32)  # ID를 벡터로
# `LSTMStack(1, 48)`은 상태가 48차원인 LSTM 하나입니다. 모든 단어의 상태와 마지막 상태를 돌려줍니다. 디코더는 이
# 마지막 상태에서 시작합니다.
states, last = kt.layers.LSTMStack(1, 48)(embed(read))
decoder_states, _ = kt.layers.LSTMStack(1, 48)(embed(written), last)
attended, learned = kt.layers.LuongAttention()(decoder_states, states, return_attention_scores=True)
logits = keras.layers.Dense(vocab_size)(attended)  # 다음에 올 수 있는 단어마다 값 하나

model = keras.Model([read, written], logits)
model.compile(
    keras.optimizers.Adam(5e-3),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
history = model.fit([sources, shifted], targets, batch_size=64, epochs=3, verbose=0)
for epoch, accuracy in enumerate(history.history["accuracy"], start=1):
    print(f"에포크 {epoch}: 단어의 {accuracy:.1%}가 맞습니다")
assert history.history["accuracy"][-1] > 0.9

# %% [markdown]
# 이제 가중치를 봅시다. 같은 층으로 만든 두 번째 모델이 단어 대신 가중치를 돌려줍니다. 층은 이미 학습했으므로 다시
# 학습할 필요가 없습니다.

# %%
reader = keras.Model([read, written], learned)
mean_alignment = reader.predict([sources[:200], shifted[:200]], verbose=0)[:, 0].mean(axis=0)
assert (mean_alignment.argmax(axis=-1) == np.arange(length)[::-1]).all()


def draw(axes, table, rows, columns, title, labels):
    """어텐션 가중치를 표로 그립니다. 쓰는 단어마다 한 행입니다."""
    axes.imshow(table, cmap="Blues", vmin=0, vmax=1)
    for (row, column), share in np.ndenumerate(table):
        axes.text(
            column, row, f"{share:.2f}", ha="center", va="center", color="white" if share > 0.5 else "black"
        )
    axes.set(title=title, xlabel=labels[0], ylabel=labels[1])
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)


titles = ["직접 정한 가중치: 번역", "학습한 가중치: 거꾸로 쓰기"]
labels = ["원문의 단어 (키, 밸류)", "번역문의 단어 (쿼리)", "원문의 자리", "번역문의 자리"]
places = [str(place) for place in range(1, length + 1)]

# %% tags=["hide-input"]
plt.rcParams["font.family"] = font_families(*source, *target, *titles, *labels)
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.4), layout="constrained")
draw(left, alignment, target, source, titles[0], labels[:2])
draw(right, mean_alignment, places, places, titles[1], labels[2:])
plt.show()

# %% [markdown]
# **그림 읽기.** 한 행이 쓰는 단어 하나의 어텐션 분포이고, 행마다 어텐션 가중치의 합이 1입니다. 왼쪽에서는 진한 칸이
# 대각선을 따라가지 않습니다. 한국어는 서술어가 끝에 오기 때문입니다. 오른쪽은 문장 200개의 평균이고, 데이터를 세 번
# 훑어 학습한 결과입니다. 진한 칸이 오른쪽 위에서 왼쪽 아래로 이어집니다. 가장 먼저 쓰는 단어가 마지막에 읽은 단어를
# 봅니다. 아무도 알려 주지 않았습니다. 이런 그림을 *정렬*(alignment)이라고 합니다.

# %% [markdown]
# ## 아직 남은 문제가 있습니다
#
# 정렬은 훌륭하지만, 상태는 여전히 LSTM이 만듭니다. 학습할 때도 하나씩 차례로 계산합니다. 어텐션이 어떤 단어든 곧바로
# 가져올 수 있다면 LSTM이 꼭 필요할까요? 트랜스포머의 대답은 "아니요"입니다. 그러면 쿼리와 키와 밸류를 다른 데서
# 만들어야 합니다. 다음 두 장에서 이것을 만듭니다.

# %% [markdown]
# ## 연습 문제
#
# ### 5분 문제
#
# 디코더의 상태는 **4차원**, 인코더의 상태는 3차원입니다. 이 둘은 내적할 수 없습니다.
#
# 1. 스코어의 식을 되도록 조금만 고쳐서 계산할 수 있게 만들어 봅시다. (도움말: $s$와 $h$ 사이에 행렬 $W_a$를 넣습니다.)
#    행렬의 모양은 무엇이어야 할까요?
# 2. 네 번째 성분을 무시하도록 $W_a$를 고르고, 정렬이 앞과 같은지 확인해 봅시다.
# 3. 4장을 읽은 뒤에 다시 풀어 봅시다. 트랜스포머에서는 $W_a$가 어디에 있을까요?

# %% tags=["hide-cell"]
# 1. 행렬을 사이에 넣으면 스코어는 s^T W_a h입니다. s가 4차원, h가 3차원이므로 W_a는 4행 3열입니다.
# 2. 네 번째 성분의 행을 0으로 두면 그 성분은 무시됩니다.
wide = np.concatenate([s, random.normal(size=(4, 1))], axis=1)  # (4, 4): 한 차원 더 큰 디코더의 상태
w_a = np.eye(4, 3)  # 앞의 세 성분만 고릅니다
general = softmax(wide @ w_a @ h.T)
np.testing.assert_allclose(general.sum(axis=-1), 1)
np.testing.assert_allclose(general, alignment)
# 3. 트랜스포머에는 그 자리에 행렬이 두 개 있습니다(4장). W_a는 W^Q와 W^K의 전치를 곱한 것입니다.
np.testing.assert_allclose((wide @ w_a) @ h.T, wide @ (h @ w_a.T).T)
print("정렬:", general.shape)

# %% [markdown]
# ### 한 시간 문제
#
# 루옹은 원문의 일정한 구간(window)만 보는 *국소*(local) 어텐션도 제안했습니다. `local_attention(s, h, places,
# width)`를 작성합니다. `s`와 `h`는 디코더와 인코더의 상태이고, `places`는 `s`의 행마다 원문의 자리 하나를 담습니다.
# 그 자리에서 `width` 이내에 있는 상태만 소프트맥스에 들어갑니다. 그다음 가중치마다 $e^{-d^2 / (2 \sigma^2)}$을
# 곱합니다. $d$는 자리에서 떨어진 거리이고, $\sigma$는 `width`의 절반입니다. 컨텍스트 벡터와 가중치를 돌려줍니다.
#
# `answer.py`에 NumPy만으로 작성합니다. `python course/check.py 2 answer.py`를 실행하면 맞는 성질과 틀린 성질을 알려
# 줍니다. 풀이는 공개하지 않습니다.
#
# ### 프로젝트
#
# 이 장의 뒤집는 모델을 단어 6, 12, 24, 48개로 학습하되, 한 번은 어텐션을 쓰고 한 번은 쓰지 않습니다. 어텐션이 없으면
# 디코더에는 마지막 상태뿐입니다. 맞힌 단어의 비율을 재고, 두 모델이 각각 어느 길이에서 무너지는지 말합니다. 무너지는
# 곳의 정렬도 살펴봅니다.

# %% [markdown]
# ## 더 읽을거리
#
# - Luong, Pham, Manning, 2015, ["Effective Approaches to Attention-based Neural Machine
#   Translation"](https://arxiv.org/abs/1508.04025), 3절: 네 줄의 식과 다른 스코어들
# - Bahdanau et al., 2015, ["Neural Machine Translation by Jointly Learning to Align and
#   Translate"](https://arxiv.org/abs/1409.0473): 최초의 어텐션. 그림 3에 정렬이 있습니다
# - Hochreiter, Schmidhuber, 1997, ["Long Short-Term Memory"](https://doi.org/10.1162/neco.1997.9.8.1735): LSTM
# - 이 라이브러리의 문서: `LuongAttention`과 `RecurrentSeq2Seq`의 레퍼런스
# - 다음 장: **3. 쿼리·키·밸류: 부드러운 조회**
