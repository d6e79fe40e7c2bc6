# %% [markdown]
# # 5. 스케일드 닷 프로덕트 어텐션
#
# 이 장을 마치면 논문에서 가장 많이 인용되는 식을 외워서 쓰고, 식의 각 부분이 어떤 모양인지 말할 수 있습니다. 식에 들어
# 있는 작은 $\sqrt{d_k}$도 설명할 수 있습니다. 이것이 없으면 무엇이 잘못되는지, 왜 $d_k$가 아닌지 알게 됩니다.
#
# **먼저 읽을 것:** 4장(손으로 계산하는 셀프 어텐션). 표준편차가 무엇인지 알면 됩니다.

# %% [markdown]
# ## 논문의 식 1
#
# 4장은 코드 세 줄로 끝났습니다. 여기에 나눗셈 하나를 더해 식으로 쓰면 논문의 식 1이 됩니다. 이것이 스케일드 닷 프로덕트
# 어텐션(scaled dot-product attention)입니다.
#
# $$\mathrm{Attention}(Q, K, V) = \mathrm{softmax}\left(\frac{QK^\top}{\sqrt{d_k}}\right) V$$
#
# | 부분 | 모양 | 한 행의 뜻 |
# | --- | --- | --- |
# | $Q$ | (target_len, $d_k$) | 토큰 하나의 쿼리 |
# | $K$ | (source_len, $d_k$) | 토큰 하나의 키 |
# | $V$ | (source_len, $d_v$) | 토큰 하나의 밸류 |
# | $QK^\top$ | (target_len, source_len) | 쿼리 하나가 모든 키에 준 스코어 |
# | 결과 | (target_len, $d_v$) | 쿼리 하나에 대한 밸류의 가중합 |
#
# target_len은 묻는 토큰의 수, source_len은 대답하는 토큰의 수이고, 셀프 어텐션에서는 둘이 같습니다. $d_v$는 밸류의
# 차원이고, $d_k$는 쿼리와 키의 차원입니다. 논문에서는 $d_k = 64$이므로 스코어를 8로 나눕니다. 왜 나눌까요?

# %%
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import matplotlib.pyplot as plt
import numpy as np

import keras_transformer as kt
from keras_transformer.fonts import font_families

keras.utils.set_random_seed(5)
random = np.random.default_rng(5)


def softmax(scores):
    """스코어의 행마다 합이 1인 어텐션 가중치로 바꿉니다."""
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


# %% [markdown]
# ## 차원이 크면 내적이 커집니다
#
# 학습을 시작할 때 쿼리와 키의 성분은 평균이 0이고 표준편차가 1인 난수와 비슷합니다. 이때 내적은 얼마나 클까요? 차원을
# 바꿔 가며 20,000쌍씩 뽑아 보겠습니다.

# %%
lengths = [4, 16, 64, 256]
print("d_k   q·k의 표준편차               d_k의 제곱근")
for d_k in lengths:
    products = np.sum(random.normal(size=(20_000, d_k)) * random.normal(size=(20_000, d_k)), axis=1)
    print(f"{d_k:3}   {products.std():25.2f}   {np.sqrt(d_k):18.2f}")
    np.testing.assert_allclose(products.std(), np.sqrt(d_k), rtol=0.05)

# %% [markdown]
# 이유는 몇 줄이면 설명됩니다. 내적은 $d_k$개의 곱을 더한 것입니다.
#
# $$q \cdot k = q_1 k_1 + q_2 k_2 + \dots + q_{d_k} k_{d_k}$$
#
# 곱 하나의 평균은 0이고 분산은 1입니다. 서로 독립인 항의 분산은 더해지므로 합의 분산은 $d_k$이고, 표준편차는
# $\sqrt{d_k}$입니다. (논문 3.2.1절의 각주가 바로 이 내용입니다.)
#
# $d_k = 64$이면 두 키의 스코어는 보통 11쯤 차이 납니다($8 \cdot \sqrt 2$). 소프트맥스를 거치면 차이 11은
# $e^{11} \approx 60{,}000$배가 됩니다. 키 하나가 거의 모두 차지합니다.

# %% [markdown]
# ## 소프트맥스가 지나치게 확신하면 학습이 되지 않습니다
#
# 왜 나쁠까요? 키 하나가 모두 차지해야 *맞을* 때도 있습니다. 문제는 학습의 처음입니다. 스코어가 난수이므로 이긴 키도
# 우연히 이겼을 뿐이고, 모델이 나중에 선택을 바꿀 수 있어야 합니다. 학습은 기울기(gradient)에 따라 모델의 파라미터를
# 바꿉니다. 소프트맥스의 기울기, 곧 스코어 $z_j$를 조금 바꿀 때 어텐션 가중치 $w_i$가 얼마나 바뀌는지는 다음과 같습니다.
#
# $$\frac{\partial w_i}{\partial z_j} = w_i (\delta_{ij} - w_j)$$
#
# $\delta_{ij}$는 $i = j$일 때 1, 아니면 0입니다. 가중치 하나가 1이고 나머지가 0이면 이 행렬의 모든 원소가 0입니다.
# 쿼리와 키까지 기울기가 전달되지 않습니다.
#
# 난수로 만든 키 16개로 두 가지를 측정해 봅시다. 가장 큰 어텐션 가중치, 그리고 이 행렬의 크기입니다. 나누는 방법은 세
# 가지입니다. 나누지 않기, $\sqrt{d_k}$로 나누기, $d_k$로 나누기.


# %%
def largest_share_and_gradient(d_k, divisor, trials=400, num_keys=16):
    """가장 큰 어텐션 가중치의 평균과 소프트맥스 기울기 크기의 평균을 돌려줍니다."""
    query = random.normal(size=(trials, 1, d_k))
    keys = random.normal(size=(trials, num_keys, d_k))
    shares = softmax(np.sum(query * keys, axis=-1) / divisor)
    gradient = shares[:, :, None] * (np.eye(num_keys) - shares[:, None, :])
    return shares.max(axis=-1).mean(), np.linalg.norm(gradient, axis=(1, 2)).mean()


widths = [4, 8, 16, 32, 64, 128, 256, 512, 1024]
measured = {
    "나누지 않음": [largest_share_and_gradient(d, 1) for d in widths],
    "√d_k로 나눔": [largest_share_and_gradient(d, np.sqrt(d)) for d in widths],
    "d_k로 나눔": [largest_share_and_gradient(d, d) for d in widths],
}
names, axis_labels = list(measured), ["d_k, 쿼리의 차원", "어텐션 가중치 16개 중 가장 큰 값", "기울기의 크기"]
titles = ["키 하나가 받는 가중치", "뒤로 전달되는 기울기"]

# %% tags=["hide-input"]
plt.rcParams["font.family"] = font_families(*names, *axis_labels, *titles)
figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 3.8), layout="constrained")
for name, colour in zip(names, ["#d1603d", "#3a6ea5", "#707070"], strict=True):
    largest, gradient = np.transpose(measured[name])
    left.semilogx(widths, largest, "o-", color=colour, label=name, base=2)
    right.semilogx(widths, gradient, "o-", color=colour, label=name, base=2)
left.axhline(1 / 16, color="black", linewidth=0.8, linestyle=":")
left.set(title=titles[0], xlabel=axis_labels[0], ylabel=axis_labels[1], ylim=(0, 1))
right.set(title=titles[1], xlabel=axis_labels[0], ylabel=axis_labels[2], ylim=(0, None))
for axes in (left, right):
    axes.set_xticks(widths, map(str, widths))
    axes.minorticks_off()
left.legend()
plt.show()

# %% [markdown]
# **그림 읽기.** 파란 선은 평평합니다. $\sqrt{d_k}$로 나누면 벡터의 차원이 얼마인지는 상관없습니다. 나누지 않으면(주황)
# 차원이 커질수록 키 하나가 점점 더 많이 차지하고, 오른쪽 그림의 기울기는 0에 가까워집니다. $d_k$로 나누면(회색)
# 스코어가 지나치게 작아집니다. 쿼리가 무엇을 묻든 모든 키가 거의 같은 어텐션 가중치를 받아, 점선으로 표시한 $1/16$에
# 가까워집니다. 이때 기울기는 작지 않지만, 어텐션이 키를 구별하지 못합니다.

# %% [markdown]
# ![막대 다섯 개: d_k가 64이면 키 하나가 거의 다 가져갑니다](../../docs/images/motion_softmax.ko.svg)
#
# 사이트에서는 이 그림에 슬라이더가 있습니다. $d_k$를 키우면 키 하나가 모두 가져갑니다. 그다음 제곱근으로 나누면
# $d_k = 1$일 때의 가중치로 돌아옵니다. 온도 $T$를 바꾸면 스코어를 직접 나누어 볼 수 있습니다. 온도는 14장에서 씁니다.

# %%
not_divided, by_root, by_length = (dict(zip(widths, measured[name], strict=True)) for name in names)
assert not_divided[1024][0] > 0.9 and not_divided[1024][1] < 0.5 * by_root[1024][1]
assert abs(by_root[1024][0] - by_root[16][0]) < 0.05  # 평평합니다
assert by_length[1024][0] < 0.08  # 거의 1 / 16

# %% [markdown]
# ## 식을 코드로 옮깁니다
#
# 4장의 코드에서 한 줄만 바뀝니다.


# %%
def attention(q, k, v):
    """논문의 식 1."""
    weights = softmax(q @ k.T / np.sqrt(k.shape[-1]))
    return weights @ v, weights


queries = np.array([[1, 0, 2], [2, 2, 2], [2, 1, 3]])
keys = np.array([[0, 1, 1], [4, 4, 0], [2, 3, 1]])
values = np.array([[1, 2, 3], [2, 8, 0], [2, 6, 3]])
outputs, weights = attention(queries, keys, values)
print("나누지 않았을 때", softmax(queries @ keys.T).round(3), "나누었을 때", weights.round(3), sep="\n")

# %% [markdown]
# 4장에서 쓴 값입니다. 한 행 안에서 어텐션 가중치의 순서는 그대로입니다. 그러나 토큰 하나가 거의 모두 가져갔던 둘째
# 행에서 이제는 셋째 토큰도 10분의 1쯤을 받습니다.

# %%
np.testing.assert_allclose(weights[1], [0.001, 0.909, 0.090], atol=1e-3)
assert (weights.argsort(axis=-1)[1:] == softmax(queries @ keys.T).argsort(axis=-1)[1:]).all()

# %% [markdown]
# ## 라이브러리로 확인합니다
#
# `kt.layers.dot_product_attention`은 따로 지정하지 않으면 $\sqrt{d_k}$로 나눕니다. 이번에는 논문의 크기로 해 봅시다.
# $d_k = 64$이고, 쿼리 쪽 단어는 5개, 키·밸류 쪽 단어는 7개입니다.

# %%
q, k, v = random.normal(size=(5, 64)), random.normal(size=(7, 64)), random.normal(size=(7, 64))
context, shares = kt.layers.dot_product_attention(
    *(array[None, None].astype("float32") for array in (q, k, v))
)
expected, expected_shares = attention(q, k, v)
np.testing.assert_allclose(context[0, 0], expected, atol=1e-5)
np.testing.assert_allclose(shares[0, 0], expected_shares, atol=1e-6)
print("Q", q.shape, "K", k.shape, "V", v.shape, "어텐션 가중치", shares.shape[2:], "결과", context.shape[2:])

# %% [markdown]
# 프레임워크에도 이 식이 들어 있습니다. Keras의 함수는 축의 순서가 다를 뿐(헤드가 셋째입니다) 결과는 같습니다.

# %%
by_keras = keras.ops.dot_product_attention(*(array[None, :, None].astype("float32") for array in (q, k, v)))
np.testing.assert_allclose(by_keras[0, :, 0], expected, atol=1e-5)

# %% [markdown]
# ## 학습이 끝난 모델에서도 이 나눗셈이 중요할까요?
#
# 모델은 이 나눗셈을 스스로 배울 수도 있습니다. 쿼리 행렬을 작게 만들면 됩니다. 그러나 거기까지 가려면 먼저 그 작은
# 기울기로 학습해야 합니다. 그러니 나눗셈은 새로운 능력이 아니라 좋은 출발점입니다. 논문에 따르면 $d_k$가 클 때 나누지
# 않은 어텐션은 바다나우 어텐션(Bahdanau attention)보다 성능이 낮습니다. 바다나우 어텐션은 내적 대신 작은 신경망으로
# 어텐션 스코어를 구하는, 더 먼저 나온 방식입니다. 논문은 이것을 덧셈 어텐션(additive attention)이라고
# 부릅니다(3.2.1절).

# %% [markdown]
# ## 연습 문제
#
# ### 5분 문제
#
# 쿼리와 키의 성분은 표준편차가 1이 아니라 **2**이고, $d_k = 64$라고 합시다.
#
# 1. 내적의 표준편차는 얼마일까요?
# 2. $\sqrt{d_k}$로 나눈 뒤에는 얼마일까요? 문제가 될까요?
# 3. 무엇으로 나누어야 할까요?
#
# 종이에 먼저 풀어 보고, 난수로 확인해 봅시다.

# %% tags=["hide-cell"]
q, k = 2 * random.normal(size=(2, 50_000, 64))
products = np.sum(q * k, axis=1)
# 1. 항마다 분산이 4 * 4 = 16이므로 합의 분산은 64 * 16이고, 표준편차는 8 * 4 = 32입니다.
np.testing.assert_allclose(products.std(), 32, rtol=0.03)
# 2. 나눈 뒤에도 4이므로, 소프트맥스가 다시 지나치게 확신합니다. 이 나눗셈은 입력의 크기가 1일 때 맞고,
# 그 크기는 층 정규화(9장)가 맞춰 줍니다.
np.testing.assert_allclose((products / np.sqrt(64)).std(), 4, rtol=0.03)
# 3. 표준편차인 32로 나누면 됩니다.
np.testing.assert_allclose((products / 32).std(), 1, rtol=0.03)
print("표준편차:", products.std().round(1), (products / 8).std().round(2), (products / 32).std().round(3))

# %% [markdown]
# ### 한 시간 문제
#
# 긴 문장의 스코어는 메모리에 다 들어가지 않습니다. 쿼리 하나를 받는 `attention_in_parts(query, parts)`를 작성합니다.
# `parts`는 키와 밸류의 쌍을 차례로 내놓고, 다음 쌍이 나오면 앞의 쌍은 덮어써지므로 보관할 수 없습니다. 모든 쌍에 대한
# 스케일드 닷 프로덕트 어텐션의 출력을 돌려줍니다. 스코어가 수백이어도 맞아야 합니다. $e^{400}$은 큰 수지만
# $e^{800}$은 표현할 수 없습니다.
#
# `answer.py`에 NumPy만으로 작성합니다. `python course/check.py 5 answer.py`를 실행하면 맞는 성질과 틀린 성질을 알려
# 줍니다. 풀이는 공개하지 않습니다.
#
# ### 프로젝트
#
# 16장의 작은 번역기를 $1 / \sqrt{d_k}$로 나눌 때, 나누지 않을 때, $1 / d_k$로 나눌 때로 학습합니다. 시드는 셋씩,
# $d_k$는 16과 128입니다. 스텝에 따른 손실과 어텐션 가중치의 평균 엔트로피를 그립니다. 이 장의 설명이 그림과 맞나요?

# %% [markdown]
# ## 더 읽을거리
#
# - Vaswani et al., 2017, ["Attention Is All You Need"](https://arxiv.org/abs/1706.03762), 3.2.1절과 그 각주
# - Bahdanau et al., 2015, ["Neural Machine Translation by Jointly Learning to Align and
#   Translate"](https://arxiv.org/abs/1409.0473), 3.1절: 바다나우 어텐션
# - 이 라이브러리의 문서: `dot_product_attention`의 레퍼런스 (인수 `scale`과 `soft_cap`)
# - 다음 장: **6. 멀티헤드 어텐션**
