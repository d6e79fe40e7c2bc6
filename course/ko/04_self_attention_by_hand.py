# %% [markdown]
# # 4. 손으로 계산하는 셀프 어텐션
#
# 이 장을 마치면 셀프 어텐션(self-attention)을 연필로 계산할 수 있습니다. 토큰 세 개와 작은 행렬 세 개, 그리고 정수만
# 있으면 됩니다. 라이브러리의 층이 똑같은 결과를 내놓으므로, 계산의 각 줄이 층의 어느 부분인지도 알게 됩니다.
#
# **먼저 읽을 것:** 3장(쿼리·키·밸류와 부드러운 조회). 행 하나와 행렬을 곱할 줄 알면 됩니다.

# %% [markdown]
# ## 한 시퀀스가 자기 자신에게 묻습니다
#
# 2장에서는 디코더가 묻고 인코더가 답했습니다. 시퀀스(sequence), 곧 차례로 늘어선 토큰이 두 벌이었습니다. *셀프
# 어텐션*에서는 시퀀스가 하나뿐이고, 그 안의 모든 토큰이 자신을 포함한 모든 토큰에게 묻습니다. 그 결과 토큰마다 새
# 벡터가 하나씩 나오고, 이 벡터에는 다른 토큰의 정보가 섞여 있습니다.
#
# 토큰 하나는 세 가지 역할을 하고, 역할마다 벡터가 하나씩 필요합니다.
#
# - **쿼리**(query)로서 묻습니다. "나에게는 어떤 정보가 필요한가?"
# - **키**(key)로서 알립니다. "나에게는 이런 정보가 있다."
# - **밸류**(value)로서 내줍니다. "내가 줄 수 있는 내용은 이것이다."
#
# 세 벡터는 모두 같은 입력 벡터 $x$에서 나옵니다. 모델이 학습하는 행렬 세 개를 곱하면 됩니다.
#
# $$q = x W^Q \qquad k = x W^K \qquad v = x W^V$$

# %%
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import matplotlib.pyplot as plt
import numpy as np

import keras_transformer as kt
from keras_transformer.fonts import font_families

keras.utils.set_random_seed(4)

# %% [markdown]
# ## 1단계: 입력과 행렬을 정합니다
#
# 토큰은 세 개이고, 각 토큰은 4차원 벡터입니다. 실제 모델이라면 이 행들이 임베딩(embedding), 곧 토큰을 나타내는
# 벡터입니다. 가중치 행렬이 4×3이므로 쿼리, 키, 밸류는 3차원 벡터가 됩니다. 실제 모델은 이 행렬을 학습하지만, 여기서는
# 작은 정수로 미리 정해 두었습니다.

# %%
x = np.array([[1, 0, 1, 0], [0, 2, 0, 2], [1, 1, 1, 1]])
w_key = np.array([[0, 0, 1], [1, 1, 0], [0, 1, 0], [1, 1, 0]])
w_query = np.array([[1, 0, 1], [1, 0, 0], [0, 0, 1], [0, 1, 1]])
w_value = np.array([[0, 2, 0], [0, 3, 0], [1, 0, 3], [1, 1, 0]])

# %% [markdown]
# ## 2단계: 키, 밸류, 쿼리를 구합니다
#
# 첫 번째 키를 종이에 써 봅시다. 첫 번째 입력은 $[1, 0, 1, 0]$입니다. 그러므로 $W^K$의 첫째 행과 셋째 행을 골라
# 더하면 됩니다.
#
# $$[0, 0, 1] + [0, 1, 0] = [0, 1, 1]$$
#
# 두 번째 키는 아래 셀을 실행하기 전에 직접 계산해 봅시다. (둘째 행의 두 배와 넷째 행의 두 배를 더합니다.)

# %%
keys = x @ w_key
values = x @ w_value
queries = x @ w_query
print("키", keys, "밸류", values, "쿼리", queries, sep="\n")

np.testing.assert_array_equal(keys, [[0, 1, 1], [4, 4, 0], [2, 3, 1]])
np.testing.assert_array_equal(values, [[1, 2, 3], [2, 8, 0], [2, 6, 3]])
np.testing.assert_array_equal(queries, [[1, 0, 2], [2, 2, 2], [2, 1, 3]])

# %% [markdown]
# ## 3단계: 첫 번째 쿼리의 어텐션 스코어를 구합니다
#
# 첫 번째 쿼리는 $q_1 = [1, 0, 2]$입니다. 키에 대한 어텐션 스코어(attention score)는 두 벡터의 내적(dot product)입니다.
#
# | 키 | $[1, 0, 2]$와의 내적 | 스코어 |
# | --- | --- | --- |
# | $k_1 = [0, 1, 1]$ | $1 \cdot 0 + 0 \cdot 1 + 2 \cdot 1$ | 2 |
# | $k_2 = [4, 4, 0]$ | $1 \cdot 4 + 0 \cdot 4 + 2 \cdot 0$ | 4 |
# | $k_3 = [2, 3, 1]$ | $1 \cdot 2 + 0 \cdot 3 + 2 \cdot 1$ | 4 |
#
# 첫 번째 토큰에게는 둘째 토큰과 셋째 토큰이 똑같이 쓸모 있고, 자기 자신은 그보다 덜 쓸모 있습니다.

# %%
first_scores = queries[0] @ keys.T
print(first_scores)
np.testing.assert_array_equal(first_scores, [2, 4, 4])

# %% [markdown]
# ## 4단계: 소프트맥스로 어텐션 분포를 구합니다
#
# 소프트맥스(softmax)는 스코어를 어텐션 가중치로 바꿉니다. 스코어마다 $e^{\text{스코어}}$를 구해 그 합으로 나눕니다.
# 가중치는 모두 양수이고, 다 더하면 1입니다. 이 가중치를 모은 것이 첫 번째 쿼리의 어텐션 분포입니다. 종이에서는 과감하게
# 반올림해 $[0, 0.5, 0.5]$로 씁니다. 컴퓨터는 첫 번째 토큰에도 가중치를 조금 남겨 둡니다.


# %%
def softmax(scores):
    """스코어의 행마다 합이 1인 어텐션 가중치로 바꿉니다."""
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


first_weights = softmax(first_scores)
on_paper = np.array([0.0, 0.5, 0.5])
print("정확한 값", first_weights.round(4))
print("종이 위  ", on_paper)
np.testing.assert_allclose(first_weights, [0.0634, 0.4683, 0.4683], atol=1e-4)

# %% [markdown]
# ## 5단계: 밸류의 가중합을 구합니다
#
# 첫 번째 토큰의 출력은 모든 밸류에 각각의 어텐션 가중치를 곱해 더한 것, 곧 어텐션 값(attention value)입니다. 종이에 쓴
# 가중치로 계산하면 다음과 같습니다.
#
# $$0 \cdot [1, 2, 3] + 0.5 \cdot [2, 8, 0] + 0.5 \cdot [2, 6, 3] = [2, 7, 1.5]$$
#
# 정확한 가중치로 계산해도 이 값에 가깝습니다.

# %%
first_output = first_weights @ values
print("정확한 값", first_output.round(2))
print("종이 위  ", on_paper @ values)
np.testing.assert_array_equal(on_paper @ values, [2, 7, 1.5])
np.testing.assert_allclose(first_output, [1.94, 6.68, 1.60], atol=0.005)

# %% [markdown]
# ## 모든 토큰을 한꺼번에 계산합니다
#
# 둘째 토큰과 셋째 토큰도 자기 쿼리로 같은 계산을 합니다. 서로 기다릴 필요가 없습니다. 둘째 토큰은 첫째 토큰의 출력을
# 쓰지 않기 때문입니다. 그래서 모든 스코어는 행렬 곱 $QK^\top$ 하나로 구합니다. $i$행 $j$열에는 $i$번째 쿼리가 $j$번째
# 키에 준 스코어가 들어 있습니다. 모든 출력도 행렬 곱 하나입니다. 쿼리와 키와 밸류를 구한 다음에는 코드 세 줄이 셀프
# 어텐션의 전부입니다.

# %%
scores = queries @ keys.T
weights = softmax(scores)
outputs = weights @ values

np.testing.assert_allclose(scores[0], first_scores)
np.testing.assert_allclose(outputs[0], first_output)


# %%
def draw(axes, table, title, columns, rows):
    """표를 그립니다. 값이 클수록 진합니다."""
    axes.imshow(table, cmap="Blues", vmin=0, vmax=1.6 * table.max(), aspect="auto")
    for (row, column), number in np.ndenumerate(table):
        axes.text(column, row, f"{number:.3g}" if number >= 0.001 else "0.000", ha="center", va="center")
    axes.set_title(title)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.tick_params(length=0)


names = ["토큰 1", "토큰 2", "토큰 3"]
titles = ["스코어: 쿼리와 키의 내적", "소프트맥스: 행마다 합이 1", "출력: 밸류의 가중합"]
labels = ["묻는 토큰(쿼리)", "답하는 토큰(키)", "출력의 채널"]

# %% tags=["hide-input"]
plt.rcParams["font.family"] = font_families(*names, *titles, *labels)
figure, (left, middle, right) = plt.subplots(1, 3, figsize=(10.5, 3), layout="constrained")
draw(left, scores, titles[0], names, names)
draw(middle, weights, titles[1], names, names)
draw(right, outputs, titles[2], ["1", "2", "3"], names)
left.set(xlabel=labels[1], ylabel=labels[0])
middle.set_xlabel(labels[1])
right.set_xlabel(labels[2])
plt.show()

# %% [markdown]
# **그림 읽기.** 한 행을 왼쪽에서 오른쪽으로 읽어 봅시다. 첫째 행에서는 스코어 2, 4, 4가 어텐션 가중치 0.06, 0.47,
# 0.47이 되고, 출력은 둘째 밸류와 셋째 밸류의 중간쯤에 놓입니다. 둘째 행의 스코어는 4, 16, 12이고, 소프트맥스는 토큰 2에
# 1에 가까운 가중치를 줍니다. 그래서 출력이 둘째 밸류 $[2, 8, 0]$과 거의 같습니다. 스코어 차이가 4만 되어도 가중치는
# $e^4 \approx 55$배나 차이 납니다. 5장에서 이 문제를 다룹니다.

# %% [markdown]
# ## 라이브러리로 확인합니다
#
# `kt.layers.dot_product_attention`이 3단계부터 5단계까지 계산합니다. 배열에 축이 두 개 더 있는데, 하나는 여러 시퀀스를
# 묶은 배치(batch)이고 하나는 헤드(head, 6장)입니다. 여기서는 둘 다 하나씩입니다. `scale=1.0`은 스코어를 그대로 쓰라는
# 뜻입니다.

# %%
q, k, v = (array[None, None].astype("float32") for array in (queries, keys, values))
context, shares = kt.layers.dot_product_attention(q, k, v, scale=1.0)
print("모양: (배치, 헤드, 토큰, 채널) =", context.shape)
np.testing.assert_allclose(context[0, 0], outputs, atol=1e-5)
np.testing.assert_allclose(shares[0, 0], weights, atol=1e-6)

# %% [markdown]
# 모델이 실제로 쓰는 층은 `kt.layers.MultiHeadAttention`입니다. 세 행렬을 안에 가지고 있고, 다섯 단계를 모두 합니다.
# 여기에 우리 행렬을 넣습니다. 종이의 계산과 다른 점은 두 가지입니다.
#
# - 이 층은 스코어를 키의 차원 $d_k$의 제곱근, 여기서는 $\sqrt 3$으로 나눕니다(5장). 쿼리 행렬에 $\sqrt 3$을 곱해 두면
#   두 계산이 상쇄됩니다.
# - 이 층의 끝에는 헤드를 합치는 네 번째 행렬 $W^O$가 있습니다(6장). 아무것도 바꾸지 않도록 단위행렬을 넣습니다.

# %%
layer = kt.layers.MultiHeadAttention(num_heads=1, key_dim=3, use_bias=False, output_shape=3)
inputs = x[None].astype("float32")
layer.build(inputs.shape, inputs.shape)
for weight in layer.weights:
    print(weight.path, tuple(weight.shape))

layer.set_weights(
    [
        (w_query * np.sqrt(3))[:, None, :],  # (d_model, 헤드, d_k)
        w_key[:, None, :],
        w_value[:, None, :],
        np.eye(3)[None],  # (헤드, d_v, d_model)
    ]
)
result, layer_weights = layer(inputs, inputs, return_attention_scores=True)
np.testing.assert_allclose(result[0], outputs, atol=1e-5)
np.testing.assert_allclose(layer_weights[0, 0], weights, atol=1e-6)
print(np.round(result[0], 2))

# %% [markdown]
# `layer(inputs, inputs)`를 봅시다. 같은 시퀀스를 한 번은 쿼리용으로, 한 번은 키와 밸류용으로 넣었습니다. 이것이 셀프
# 어텐션의 "셀프"입니다. 2장에서는 서로 다른 두 시퀀스였습니다.

# %% [markdown]
# ## 연습 문제
#
# ### 5분 문제
#
# 1. **셋째** 토큰의 출력을 종이에 계산해 봅시다. 쿼리는 $[2, 1, 3]$입니다. 스코어 세 개를 먼저 쓰고, 어텐션 가중치는
#    계산하기 전에 어림해 봅시다.
# 2. 첫째 토큰과 셋째 토큰을 맞바꿉니다. 이제 입력은 $x_3, x_2, x_1$입니다. 출력은 어떻게 될까요? 값이 바뀌는 것은
#    무엇이고, 자리만 옮기는 것은 무엇일까요?

# %% tags=["hide-cell"]
# 1. 스코어는 4, 12, 10입니다. 둘째 토큰이 가중치를 거의 모두 받고, 셋째 토큰이 10분의 1쯤 받습니다.
third_scores = queries[2] @ keys.T
np.testing.assert_array_equal(third_scores, [4, 12, 10])
third_output = softmax(third_scores) @ values
np.testing.assert_allclose(third_output, [2.0, 7.76, 0.36], atol=0.005)
print("스코어", third_scores, "어텐션 가중치", softmax(third_scores).round(3), "출력", third_output.round(2))

swapped = x[[2, 1, 0]]
swapped_weights = softmax((swapped @ w_query) @ (swapped @ w_key).T)
swapped_outputs = swapped_weights @ (swapped @ w_value)
# 2. 출력은 토큰을 따라 자리만 옮기고, 값은 바뀌지 않습니다. 어텐션은 순서를 모릅니다(8장).
np.testing.assert_allclose(swapped_outputs, outputs[[2, 1, 0]])

# %% [markdown]
# ### 한 시간 문제
#
# 이번에는 거꾸로 행렬을 고릅니다. `kernels(x, places, given)`을 작성합니다. $W^Q$, $W^K$, $W^V$를 돌려주되, 토큰
# $i$가 토큰 `places[i]`에 0.99가 넘는 가중치를 주고 그 출력이 `given[places[i]]` 행이 되어야 합니다(이 장처럼 나누지
# 않습니다). `x`의 행은 선형 독립입니다. `np.linalg.pinv`를 쓰면 편합니다.
#
# `answer.py`에 NumPy만으로 작성합니다. `python course/check.py 4 answer.py`를 실행하면 맞는 성질과 틀린 성질을 알려
# 줍니다. 풀이는 공개하지 않습니다.
#
# ### 프로젝트
#
# 토큰의 값 하나를 슬라이더로 움직이면 쿼리, 키, 스코어, 가중치, 출력이 함께 변하는 페이지를 만듭니다. 도구는 무엇이든
# 좋습니다. 어텐션을 모르는 사람에게 보여 주고, 어디에서 막히는지 적습니다.

# %% [markdown]
# ## 더 읽을거리
#
# - Vaswani et al., 2017, ["Attention Is All You Need"](https://arxiv.org/abs/1706.03762), 3.2.1절: 위의 코드 세 줄을 식
#   하나로 씁니다
# - 이 라이브러리의 문서: *Building blocks*, 그리고 `MultiHeadAttention`과 `dot_product_attention`의 레퍼런스
# - 다음 장: **5. 스케일드 닷 프로덕트 어텐션**. 그림의 둘째 행에서는 토큰 하나의 가중치가 거의 1이었습니다. 이것이 왜
#   학습을 방해하는지, $\sqrt{d_k}$가 어떻게 고치는지 알아봅니다.
