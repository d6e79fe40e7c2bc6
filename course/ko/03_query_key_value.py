# %% [markdown]
# # 3. 쿼리·키·밸류: 부드러운 조회
#
# 이 장을 마치면 어텐션을 표에서 값을 찾는 일로 설명할 수 있습니다. 쿼리와 키와 밸류가 무엇인지, 답이 왜 밸류의
# 가중합인지, 소프트맥스가 단순한 나눗셈보다 나은 점이 무엇인지 알게 됩니다. 기온표를 직접 만들고, 표에 없는 시각을
# 물어봅니다.
#
# **먼저 읽을 것:** 2장(루옹 어텐션). Python의 `dict`와 두 벡터의 내적을 알면 됩니다.

# %% [markdown]
# ## 딕셔너리는 정확히 일치해야만 값을 줍니다
#
# Python의 `dict`는 키(key)에 밸류(value)를 짝지어 둡니다. 우리는 쿼리(query)로 묻습니다. 쿼리가 어떤 키와 같으면 그
# 밸류를 얻습니다. 같은 키가 없으면, 아무리 가까운 키가 있어도 오류가 납니다.

# %%
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import matplotlib.pyplot as plt
import numpy as np

import keras_transformer as kt
from keras_transformer.fonts import font_families

keras.utils.set_random_seed(3)

temperatures = {3: 11.0, 9: 15.0, 15: 22.0, 21: 16.0}  # 하루 중의 시각: 섭씨온도
print("9시:", temperatures[9])
try:
    temperatures[10]
except KeyError as error:
    print("10시: KeyError", error)

# %% [markdown]
# 10시는 9시보다 분명히 조금 더 따뜻할 것입니다. 사람이라면 "9시와 거의 같고, 15시 쪽으로 조금 더 높다"라고 답합니다.
# *부드러운* 조회(soft look-up)는 바로 이렇게 합니다.
#
# 1. 쿼리를 **모든** 키와 비교합니다. 키마다 스코어가 하나씩 나옵니다.
# 2. 스코어를 합이 1인 어텐션 가중치로 바꿉니다.
# 3. **모든** 밸류에 가중치를 곱해 더합니다.
#
# 이것이 어텐션입니다. 이제 한 단계씩 살펴보겠습니다.

# %% [markdown]
# ## 1단계: 쿼리를 키와 비교합니다
#
# 내적으로 비교할 수 있도록 키와 쿼리를 벡터로 만듭니다. 시각은 시계의 방향입니다. 하루 24시간에 한 바퀴를 도는, 길이가
# 1인 바늘을 생각해 봅시다. (그러면 23시와 1시가 실제처럼 가까워집니다.) 두 바늘의 방향이 같으면 내적이 1, 직각이면 0,
# 반대면 −1입니다.


# %%
def hand(hour):
    """24시간 시계에서 시각의 방향을 돌려줍니다, `(..., 2)`."""
    angle = 2 * np.pi * np.asarray(hour) / 24
    return np.stack([np.sin(angle), np.cos(angle)], axis=-1)


hours = np.array(list(temperatures))
keys = hand(hours)  # (4, 2)
values = np.array(list(temperatures.values()))[:, None]  # (4, 1)
similarity = hand(10) @ keys.T
print(dict(zip(hours.tolist(), similarity.round(2).tolist(), strict=True)))
assert similarity.argmax() == 1  # 9시가 가장 가깝습니다

# %% [markdown]
# ## 2단계: 스코어를 어텐션 가중치로 바꿉니다
#
# 스코어를 어떻게 어텐션 가중치로 바꿀까요? 더 쉬운 예부터 봅시다. 단어 세 개가 각각 75점, 50점, 20점을 받았습니다.
# 합으로 나누는 방법이 있습니다.

# %%
points = np.array([75.0, 50.0, 20.0])
print("합으로 나누면:", (points / points.sum()).round(2))
np.testing.assert_allclose(points / points.sum(), [0.52, 0.34, 0.14], atol=0.005)

# %% [markdown]
# 이런 점수라면 괜찮지만, 내적에는 쓸 수 없습니다. 내적은 음수일 수 있고, 그러면 가중치도 음수가 됩니다. 합이 0이 될
# 수도 있습니다. 소프트맥스(softmax)는 먼저 $e^{\text{스코어}}$를 구합니다. 어떤 스코어든 결과는 양수입니다.
#
# $$\mathrm{softmax}(z)_i = \frac{e^{z_i}}{\sum_j e^{z_j}}$$
#
# 스코어의 *차이*만 중요합니다. 모든 스코어에 100을 더해도 결과는 같습니다. 따라서 선택이 얼마나 날카로운지는 이 차이의
# 크기에 달려 있습니다. (그래서 아래 함수는 가장 큰 스코어를 먼저 빼도 됩니다. 그러면 거듭제곱이 너무 커지지 않습니다.)
# 위의 점수를 그대로도 써 보고, 더 작은 단위로도 써 보겠습니다.


# %%
def softmax(scores):
    """스코어의 행마다 합이 1인 어텐션 가중치로 바꿉니다."""
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


for unit in (1, 10, 100):
    print(f"점수 / {unit:3}:", softmax(points / unit).round(4))
assert softmax(points)[0] > 0.9999  # 1등이 모두 차지합니다
np.testing.assert_allclose(softmax(points + 100), softmax(points))

# %% [markdown]
# ## 3단계: 밸류의 가중합을 구합니다
#
# 소프트맥스가 밸류 세 개에 어텐션 가중치 0.00005, 0.00098, 0.99896을 주었다고 합시다. 가중합은 셋째 밸류와 거의
# 같습니다. 부드러운 조회도 `dict`만큼 날카로울 수 있습니다. 스코어가 충분히 차이 나기만 하면 됩니다. 여기서는 이웃한 두
# 스코어의 차이가 각각 약 3과 7입니다.
#
# (가중치는 다섯 자리로 반올림한 값이라 합이 0.99999입니다.)

# %%
shares = np.array([0.00005, 0.00098, 0.99896])
three_values = np.array([[1.0, 0.0], [0.0, 1.0], [5.0, 5.0]])
print("가중합:", shares @ three_values)
np.testing.assert_allclose(shares @ three_values, three_values[2], atol=0.01)

differences = np.diff(np.log(shares))
print("스코어의 차이:", differences.round(2))
np.testing.assert_allclose(differences, [3, 7], atol=0.1)

# %% [markdown]
# ## 세 단계를 함수 하나로 씁니다
#
# `sharpness`(날카로움)를 스코어에 곱합니다. 크면 조회가 날카로워지고, 작으면 부드러워집니다. (5장에서는 이 값이
# $1 / \sqrt{d_k}$이고, $d_k$는 키의 차원입니다.)


# %%
def look_up(query, keys, values, sharpness):
    """쿼리마다 밸류의 가중합과 어텐션 가중치를 돌려줍니다."""
    shares = softmax(sharpness * (query @ keys.T))
    return shares @ values, shares


for sharpness in (0, 2, 6, 1000):
    answer, shares = look_up(hand(10), keys, values, sharpness)
    print(f"날카로움 {sharpness:4}: {answer[0]:5.2f}도, 가중치 {shares.round(3)}")

at_nine, _ = look_up(hand(9), keys, values, 1000)
np.testing.assert_allclose(at_nine, temperatures[9])  # dict만큼 날카롭습니다
mean, _ = look_up(hand(10), keys, values, 0)
np.testing.assert_allclose(mean, values.mean())  # 쿼리가 아무 영향도 주지 않습니다

# %% [markdown]
# 이제 하루의 모든 시각을 묻고, 답을 그림으로 그립니다.

# %%
day = np.linspace(0, 24, 289)
answers = {sharpness: look_up(hand(day), keys, values, sharpness) for sharpness in (1, 4, 1000)}
texts = ["묻는 시각 (쿼리)", "답, °C", "밸류의 가중치", "조회의 답", "어텐션 가중치, 날카로움 4"]
names = ["날카로움", "표의 값", "밸류"]

# %% tags=["hide-input"]
plt.rcParams["font.family"] = font_families(*texts, *names)
figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 3.8), layout="constrained")
for (sharpness, (answer, _)), colour in zip(answers.items(), ["#9bb8d3", "#3a6ea5", "#d1603d"], strict=True):
    left.plot(day, answer[:, 0], color=colour, label=f"{names[0]} {sharpness}")
left.plot(hours, values[:, 0], "o", color="black", label=names[1])
left.set(title=texts[3], xlabel=texts[0], ylabel=texts[1])
shares = answers[4][1]
right.stackplot(
    day,
    shares.T,
    labels=[f"{names[2]} {hour}:00" for hour in hours],
    colors=["#26466d", "#3a6ea5", "#d1603d", "#e9b872"],
)
right.set(title=texts[4], xlabel=texts[0], ylabel=texts[2], ylim=(0, 1))
for axes in (left, right):
    axes.set(xlim=(0, 24), xticks=range(0, 25, 3))
    axes.legend(fontsize=8, loc="upper left")
plt.show()

# %% [markdown]
# **그림 읽기.** 왼쪽에서 주황 선은 아주 날카로운 조회입니다. 한 값에서 다른 값으로 건너뜁니다. 파란 선은 매끄럽습니다.
# 옅은 선은 너무 부드러워서 하루의 평균인 16도 쪽으로 끌려가고, 3시와 15시의 값에 이르지 못합니다. 어떤 선도 11도와 22도
# 사이를 벗어나지 않습니다. 가중 평균은 가장 작은 밸류와 가장 큰 밸류 사이에 있기 때문입니다. 오른쪽에서 색 하나는 표의
# 한 항목이 받는 어텐션 가중치입니다. 9시에는 9:00의 밸류가 높이의 대부분을 차지하고, 12시에는 9:00과 15:00의 밸류가
# 똑같이 나누어 가집니다.

# %%
for answer, _ in answers.values():
    assert (answer >= values.min() - 1e-9).all() and (answer <= values.max() + 1e-9).all()
noon = look_up(hand(12), keys, values, 4)[1]
np.testing.assert_allclose(noon[1], noon[2])

# %% [markdown]
# 매끄러운 선에는 `dict`에 없는 성질이 하나 더 있습니다. 모든 점에서 미분할 수 있습니다. 답이 틀리면 쿼리와 키와 밸류를
# 어느 쪽으로 옮겨야 하는지 미분이 알려 줍니다. 그래서 신경망이 부드러운 표를 *학습*할 수 있습니다.

# %% [markdown]
# ## 라이브러리로 확인합니다
#
# `kt.layers.dot_product_attention`은 여러 쿼리를 한꺼번에 이렇게 조회합니다. `scale`이 우리의 날카로움입니다. 배열의 앞
# 두 축은 배치와 헤드(6장)이고, 여기서는 하나씩입니다.

# %%
questions = np.array([0.5, 6, 10, 17.25])
q, k, v = (array[None, None].astype("float32") for array in (hand(questions), keys, values))
mixed, weights = kt.layers.dot_product_attention(q, k, v, scale=4.0)
expected, expected_shares = look_up(hand(questions), keys, values, 4)
np.testing.assert_allclose(mixed[0, 0], expected, atol=1e-4)
np.testing.assert_allclose(weights[0, 0], expected_shares, atol=1e-5)
for hour, answer in zip(questions, mixed[0, 0, :, 0], strict=True):
    print(f"{hour:5}시: {float(answer):.1f}도")

# %% [markdown]
# ## 단어에서는 무엇이 쿼리, 키, 밸류일까요?
#
# | | 기온표에서 | 2장에서 | 셀프 어텐션에서 (4장) |
# | --- | --- | --- | --- |
# | 쿼리 | 묻는 시각 | 디코더의 상태 | 묻는 토큰으로 만든 벡터 |
# | 키 | 표에 있는 시각 | 인코더의 상태 | 각 토큰으로 만든 벡터 |
# | 밸류 | 그 시각의 기온 | 인코더의 같은 상태 | 각 토큰으로 만든 벡터 |
#
# 키와 밸류가 왜 따로 있는지는 기온표가 알려 줍니다. 시각은 찾는 데 쓰고, 기온은 답하는 데 씁니다. 2장에서는 벡터 하나를
# 두 가지로 썼습니다. *토큰*(token)은 1장의 "저는"처럼 문장을 나눈 조각입니다. 트랜스포머는 토큰마다 벡터를 두 개
# 만들고, 만드는 방법을 학습합니다.

# %% [markdown]
# ## 연습 문제
#
# ### 5분 문제
#
# 1. 쿼리가 벡터 $[0, 0]$입니다. 어느 쪽도 가리키지 않습니다. 조회의 답은 무엇이고, 날카로움은 왜 상관없을까요?
# 2. 표에 다섯째 항목을 넣습니다. 9:00에 99도를 가리키는 *고장 난* 온도계이고, 키는 9:00의 항목과 같습니다. 아주
#    날카로운 조회는 9시에 무엇이라고 답할까요? `dict`라면 어떻게 될까요?

# %% tags=["hide-cell"]
# 1. 0 벡터와 어떤 키를 내적해도 0입니다. 날카로움을 곱해도 0이므로 어텐션 가중치는 언제나 1/4씩이고, 답은 네 기온의
#    평균인 16도입니다.
for sharpness in (1, 1000):
    nowhere, shares = look_up(np.zeros(2), keys, values, sharpness)
    np.testing.assert_allclose(shares, 1 / 4)  # 모든 스코어가 0입니다
    np.testing.assert_allclose(nowhere, values.mean())

# 2. 9:00의 두 항목은 키가 같으므로 스코어가 같고, 스코어가 같으면 어텐션 가중치도 같습니다. 날카로움은
#    스코어의 차이를 키울 뿐이므로, 아무리 커도 두 항목을 가르지 못합니다. 두 항목이 0.5씩 나누어 가지고, 답은 15와
#    99의 평균인 57도입니다. 둘을 가르려면 키가 달라야 합니다. dict는 키 하나에 밸류 하나만 두므로 나중에 넣은
#    99가 15를 지웁니다.
more_keys, more_values = np.concatenate([keys, hand([9])]), np.concatenate([values, [[99.0]]])
answer, shares = look_up(hand(9), more_keys, more_values, 1000)
np.testing.assert_allclose(answer, (15 + 99) / 2)
print("어텐션 가중치:", shares.round(2), "답:", answer)

# %% [markdown]
# ### 한 시간 문제
#
# 조회는 무엇을 물을지 배울 수 있습니다. `find_query(keys, values, wanted)`를 작성합니다. 날카로움이 1인 조회의 답이
# `wanted`와 0.01 이내로 같아지는 쿼리를 돌려줍니다. 0으로 채운 쿼리에서 시작하고, 제곱 오차의 기울기를 종이에
# 유도하여 따라 내려갑니다. `wanted`는 언제나 밸류의 가중합입니다.
#
# `answer.py`에 NumPy만으로 작성합니다. `python course/check.py 3 answer.py`를 실행하면 맞는 성질과 틀린 성질을 알려
# 줍니다. 풀이는 공개하지 않습니다.
#
# ### 프로젝트
#
# 사는 곳의 한 해 기온을 한 시간 단위로 구합니다. "3월의 어느 날 7시 30분은 몇 도일까?"를 부드러운 조회로 답합니다.
# 키에는 시각과 날짜를 담습니다. 데이터의 절반에서 가장 좋은 날카로움을 찾고, 나머지 절반에서 오차를 잽니다. 그달의
# 평균보다 나은가요?

# %% [markdown]
# ## 더 읽을거리
#
# - Vaswani et al., 2017, ["Attention Is All You Need"](https://arxiv.org/abs/1706.03762), 3.2절: 쿼리와 키와 밸류로
#   정의한 어텐션
# - Graves et al., 2014, ["Neural Turing Machines"](https://arxiv.org/abs/1410.5401), 3.3.1절: 내용으로 찾는 메모리.
#   여기에도 날카로움이 있습니다
# - 이 라이브러리의 문서: `dot_product_attention`의 레퍼런스
# - 다음 장: **4. 손으로 계산하는 셀프 어텐션**
