# %% [markdown]
# # 8. 위치
#
# 이 장을 마치면 어텐션에 위치(position)가 필요한 까닭, 사인과 코사인으로 자리에 번호를 매기는 방법, 그리고 논문의
# 포지셔널 인코딩(positional encoding)을 그린 히트맵을 읽는 방법을 알게 됩니다. 이 인코딩 덕분에 쉬워지는 일, 곧 정해진
# 칸만큼 앞을 보는 일도 이해하게 됩니다.
#
# **먼저 읽을 것:** 4장부터 7장까지.

# %% [markdown]
# ## 위치가 없으면 단어의 순서를 모릅니다
#
# 순환 모델은 단어를 차례로 읽으므로 순서를 압니다. 어텐션은 모든 단어를 한꺼번에 받습니다. 어텐션 스코어는 두 단어의
# *내용*을 견줄 뿐, 어디에 있는지는 보지 않습니다. 이렇게 순서를 버린 단어의 모음을 단어 가방(bag of words)이라고
# 합니다. 어텐션은 {home, go, I}와 {I, go, home}을 구별하지 못합니다. 입력의 단어 순서를 바꾸면 출력의 순서도 똑같이
# 바뀔 뿐, 다른 것은 변하지 않습니다.

# %%
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import matplotlib.pyplot as plt
import numpy as np

import keras_transformer as kt
from keras_transformer.fonts import font_families

keras.utils.set_random_seed(8)
random = np.random.default_rng(8)

# %%
words = {word: random.normal(size=16) for word in ("I", "go", "home")}
attention = kt.MultiHeadAttention(num_heads=2, key_dim=8)


def outputs(*sentence, positions=None):
    """문장의 셀프 어텐션을 계산합니다. 단어마다 출력이 하나씩 있는 딕셔너리를 돌려줍니다."""
    x = np.array([[words[word] for word in sentence]], "float32")
    x = x if positions is None else positions(x)
    return dict(zip(sentence, attention(x, x)[0].numpy(), strict=True))


forwards, backwards = outputs("I", "go", "home"), outputs("home", "go", "I")
for word in words:
    np.testing.assert_allclose(forwards[word], backwards[word], atol=1e-6)
print("위치가 없으면: 출력이 같습니다")

encoding = kt.PositionalEncoding()
forwards = outputs("I", "go", "home", positions=encoding)
backwards = outputs("home", "go", "I", positions=encoding)
for word in words:
    print(f"{word:5s} 변화량 {np.abs(forwards[word] - backwards[word]).max():.3f}")
assert all(np.abs(forwards[word] - backwards[word]).max() > 0.01 for word in ("I", "home"))

# %% [markdown]
# ## 위치마다 시곗바늘의 각도를 정합니다
#
# 자리에 번호를 어떻게 매길까요? "17"이라는 값 하나를 덧붙이면 곤란한 점이 있습니다. 값은 끝없이 커지고, 500번째 자리는
# 학습 때 나온 적이 없을 수 있습니다. 논문은 임베딩에 벡터를 하나 *더합니다*. 텍스트가 아무리 길어도 벡터의 성분은 −1과
# 1 사이에 있습니다. 채널 $2i$는 사인, 채널 $2i + 1$은 코사인이고, 한 쌍인 두 채널은 진동수(frequency)가 같습니다.
#
# $$PE_{(pos, 2i)} = \sin\!\left(\frac{pos}{10000^{2i / d}}\right) \qquad
# PE_{(pos, 2i+1)} = \cos\!\left(\frac{pos}{10000^{2i / d}}\right)$$
#
# $pos$는 0부터 세는 자리, $i$는 0부터 세는 쌍의 번호, $d$는 $d_{model}$입니다. 채널(channel)은 벡터의 성분 하나입니다.
# 시계를 떠올려 봅시다. 첫 번째 쌍은 빠른 바늘입니다. $2\pi \approx 6.3$칸마다 한 바퀴를 돕니다. 다음 쌍은 조금
# 느립니다. $d = 128$이면 마지막 쌍은 한 바퀴에 약 54,000칸이 걸립니다(한계는 $2\pi \cdot 10000 = 62{,}832$칸입니다).
# 빠른 바늘 하나만으로는 정오와 자정을 구별할 수 없지만, 바늘을 모두 보면 자리마다 모양이 다릅니다.
#
# 왜 이어 붙이지 않고 더할까요? 논문은 이유를 말하지 않습니다. 단어 벡터 $x$와 위치 벡터 $p$를 이어 붙인 뒤 행렬을
# 곱하면 $[x; p]\, W = x W_1 + p W_2$이므로 이것도 합입니다. 더하기는 $W_1 = W_2$인 경우이고, 벡터의 차원이 늘지
# 않는다는 장점이 있습니다. 임베딩은 학습되므로, 단어의 정보는 위치가 잘 쓰지 않는 방향에 놓일 수 있습니다.

# %%
length, d_model, longest = 50, 128, 10_000

positions = np.arange(length)[:, None]
pairs = np.arange(0, d_model, 2)[None]
angles = positions / longest ** (pairs / d_model)
table = np.empty((length, d_model))
table[:, 0::2] = np.sin(angles)
table[:, 1::2] = np.cos(angles)

np.testing.assert_allclose(table[0, :4], [0, 1, 0, 1])
np.testing.assert_allclose(table[1, :2], [np.sin(1), np.cos(1)])
assert np.abs(table).max() <= 1
np.testing.assert_allclose(encoding(np.zeros((1, length, d_model)))[0], table, atol=1e-5)

distances = np.linalg.norm(table[:, None] - table[None], axis=-1)
nearest = distances[~np.eye(length, dtype=bool)].min()
print(f"50개 자리 사이의 가장 짧은 거리: {nearest:.2f}")
assert nearest > 1  # 똑같은 자리는 없습니다

# %% [markdown]
# 히트맵에는 자리 50개와 채널 128개가 있습니다. 행 하나는 그 자리의 단어에 더해지는 벡터입니다. 사인과 코사인, 나란한 두
# 열이 시곗바늘 하나입니다. 왼쪽은 행마다 색이 바뀌고, 오른쪽은 거의 바뀌지 않습니다. 코사인은 1 근처에, 사인은 0 근처에
# 머뭅니다.

# %%
title = "포지셔널 인코딩: 짝수 채널은 사인, 홀수 채널은 코사인. 오른쪽으로 갈수록 파장이 길어집니다."
kt.plots.positions(encoding, length=50, d_model=128, title=title, xlabel="채널", ylabel="자리")

# %% [markdown]
# ![시계 네 개. 파란 바늘은 자리 3, 점선 바늘은 자리 5](../../docs/images/motion_clocks.ko.svg)
#
# $d = 8$일 때의 시계 네 개입니다. 파란 바늘은 그 자리, 점선 바늘은 $k$만큼 뒤의 자리입니다. 사이트에서 자리를 옮기면
# 바늘이 모두 돌고, 왼쪽 바늘이 가장 빨리 돕니다. 한 시계의 두 바늘 사이의 각도를 봅시다. 변하지 않습니다.

# %% [markdown]
# ## 왜 사인일까요? 자리를 옮기는 것은 회전입니다
#
# 진동수가 $\omega = 10000^{-2i/d}$인 쌍은 위치 $p$에서 $(\sin \omega p, \cos \omega p)$입니다. 위치 $p + k$는 같은 쌍을
# 각도 $\omega k$만큼 돌린 것입니다. 이 회전은 $k$에만 달려 있고 $p$와는 상관이 없습니다. 그러므로 행렬 하나가 *모든*
# 자리를 $k$칸 옮깁니다. 쿼리를 만드는 행렬이 이 회전을 배운다면, 어텐션 층은 어디에 있든 $k$칸 앞을 볼 수 있습니다.
# 논문은 이 성질 때문에 모델이 상대 위치로 보는 법을 쉽게 배울 것이라고 *가정했습니다*(3.5절). 학습한 모델이 실제로
# 그렇게 하는지는 논문에서 확인하지 않았습니다.

# %%
k = 3
rates = 1 / longest ** (pairs[0] / d_model)
turn = np.zeros((d_model, d_model))
for i, rate in enumerate(rates):
    sine, cosine = np.sin(rate * k), np.cos(rate * k)
    turn[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = [[cosine, -sine], [sine, cosine]]
np.testing.assert_allclose(table[:-k] @ turn, table[k:], atol=1e-9)
print("행렬 하나가 모든 자리를 옮기는 칸 수:", k)

# %% [markdown]
# 두 위치 벡터의 내적은 둘 사이의 거리를 알려 줍니다. 내적은 $\sum_i \cos(\omega_i (p - q))$이고, 거리에만 달려
# 있습니다. 곡선을 보면 거리 0에서 가장 높고, 작은 물결을 그리며 양쪽으로 낮아집니다.

# %%
products = table @ table.T
np.testing.assert_allclose(products[10, 15], products[30, 35])
np.testing.assert_allclose(np.diag(products), d_model / 2)
names = ("25번 자리와의 거리", "내적")

# %% tags=["hide-input"]
plt.rcParams["font.family"] = font_families(*names)
figure, axes = plt.subplots(figsize=(6.5, 2.8), layout="constrained")
axes.plot(np.arange(length) - 25, products[25], color="#3a6ea5")
axes.set(xlabel=names[0], ylabel=names[1])
plt.show()

# %% [markdown]
# ## 자리에 번호를 매기는 방법은 더 있습니다
#
# | 위치 | 방법 | 라이브러리 |
# | --- | --- | --- |
# | 사인파 (논문) | 정해진 벡터를 더합니다 | `PositionalEncoding` |
# | 학습되는 위치 (BERT, GPT-2) | 학습한 벡터를 더합니다. 최대 길이가 정해져 있습니다 | `LearnedPositions` |
# | 회전 (Llama) | 쿼리와 키를 위에서 본 것처럼 돌립니다 | `RotaryPositions` |
# | 편향 (T5, ALiBi) | 거리에 따른 값을 어텐션 스코어에 더합니다 | `RelativePositionBias`, `ALiBi` |

# %% [markdown]
# ## 연습 문제
#
# ### 5분 문제
#
# 위치를 더하기 전에 단어의 임베딩에 $\sqrt{d_{model}}$을 곱합니다(3.4절). 임베딩의 성분은 처음에 표준편차가
# $1 / \sqrt{d_{model}}$인 난수입니다. $d_{model} = 128$이라고 합시다.
#
# 1. 위치 벡터의 길이는 얼마일까요? (한 쌍의 길이는 1입니다.)
# 2. 단어 벡터의 길이는 곱하기 전과 뒤에 대략 얼마일까요? 곱하지 않으면 단어와 위치 가운데 어느 쪽의 영향이 더 클까요?

# %% tags=["hide-cell"]
# 1. 길이가 1인 쌍이 64개이므로 벡터의 길이는 64의 제곱근인 8입니다.
np.testing.assert_allclose(np.linalg.norm(table, axis=1), np.sqrt(64))
vectors = random.normal(size=(1000, 128)) / np.sqrt(128)
before, after = (np.linalg.norm(vectors * factor, axis=1).mean() for factor in (1, np.sqrt(128)))
print(f"곱하기 전 {before:.2f}, 곱한 뒤 {after:.2f}, 위치 8.00")
# 2. 곱하기 전에는 1 대 8이므로 단어의 영향이 거의 없습니다. 곱한 뒤에는 11.3 대 8입니다.
np.testing.assert_allclose([before, after], [1, np.sqrt(128)], rtol=0.02)

# %% [markdown]
# ### 한 시간 문제
#
# 요즘 모델은 위치를 더하는 대신 쿼리와 키를 돌립니다. $d$차원 행을 받는 `rotate(x, places)`를 작성합니다. 행의
# $2i$번과 $2i + 1$번 값이 시곗바늘 하나입니다. 자리 $p$에서는 이 바늘을 시계 반대 방향으로 $p / 10000^{2i/d}$만큼
# 돌립니다.
#
# `answer.py`에 NumPy만으로 작성합니다. `python course/check.py 8 answer.py`를 실행하면 맞는 성질과 틀린 성질을 알려
# 줍니다. 풀이는 공개하지 않습니다.
#
# ### 프로젝트
#
# 2장의 뒤집는 과제를 작은 트랜스포머로 학습합니다. 위치는 사인과 코사인, 학습하는 위치, 회전의 세 가지입니다. 단어
# 20개까지의 문장으로 학습하고 20개에서 60개로 시험합니다. 배운 것보다 더 먼 위치를 셀 수 있는 것은 어느 쪽인가요?
# 차이를 설명합니다.

# %% [markdown]
# ## 더 읽을거리
#
# - Vaswani et al., 2017, ["Attention Is All You Need"](https://arxiv.org/abs/1706.03762), 3.5절과 표 3의 (E): 학습되는
#   위치도 성능이 비슷합니다
# - Su et al., 2021, ["RoFormer"](https://arxiv.org/abs/2104.09864): 어텐션 안의 회전
# - 다음 장: **9. 블록**
