# %% [markdown]
# # 11. 왜 셀프 어텐션인가: 비용, 순차 연산, 경로의 길이
#
# 이 장을 마치면 논문의 표 1을 읽을 수 있습니다. 한 층의 계산량이 얼마인지, 그중 얼마나 많은 단계를 차례로 기다려야
# 하는지, 두 토큰 사이에서 신호가 얼마나 긴 경로를 지나가는지 알게 됩니다. 세 가지를 직접 세어 보고, 실제 층의 시간도
# 측정합니다.
#
# **먼저 읽을 것:** 4장과 5장 (손으로 계산하는 셀프 어텐션, 스케일드 닷 프로덕트 어텐션).

# %% [markdown]
# ## 네 가지 층이 같은 일을 합니다
#
# 층은 폭이 $d$인 벡터 $n$개를 읽고, 폭이 $d$인 벡터 $n$개를 내놓습니다. 이때 각 자리의 벡터는 다른 자리의 내용을
# 알아야 합니다. 이 일을 할 수 있는 층은 네 가지입니다.
#
# | 층 | $i$번째 자리가 $j$번째 자리를 아는 방법 |
# | --- | --- |
# | 셀프 어텐션(self-attention) | 모든 자리와 자신을 비교하고, 모든 자리를 섞습니다 |
# | 순환층(recurrent) | 상태가 $j$에서 $i$까지 모든 자리를 차례로 지나갑니다 |
# | 합성곱층(convolutional) | 필터가 이웃 $k$개를 봅니다. 층을 쌓으면 더 멀리 봅니다 |
# | 제한된 셀프 어텐션(restricted self-attention) | 이웃 $r$개만 봅니다 |
#
# 논문은 이 층들을 세 가지 값으로 비교합니다(표 1). $k$는 필터의 폭이고, $r$은 이웃의 수입니다.
#
# | 층 | 층마다 드는 계산량 | 순차 연산의 수 | 가장 긴 경로 |
# | --- | --- | --- | --- |
# | 셀프 어텐션 | $n^2 d$ | $1$ | $1$ |
# | 순환층 | $n d^2$ | $n$ | $n$ |
# | 합성곱층 | $k n d^2$ | $1$ | $\log_k n$ |
# | 제한된 셀프 어텐션 | $r n d$ | $1$ | $n / r$ |
#
# 표의 값은 모두 차수(order)이므로 상수배는 빠져 있습니다. 이 상수까지 직접 찾아보겠습니다.

# %%
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import time

import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.fonts import font_families

keras.utils.set_random_seed(11)
random = np.random.default_rng(11)

# %% [markdown]
# ## 곱셈의 수를 세어 봅시다
#
# 각 층을 NumPy로 쓰고, 모든 행렬 곱이 계수기를 지나가게 합니다. 계수기는 *차례*(round)의 수도 기억합니다. 다른
# 곱의 결과가 필요한 곱은 다음 차례를 기다려야 합니다. 같은 차례의 곱은 동시에 계산할 수 있습니다.


# %%
class Counter:
    """행렬을 곱하면서 스칼라 곱셈의 수와 차례의 수를 셉니다."""

    def __init__(self):
        self.multiplications = 0
        self.rounds = 0

    def product(self, a, b):
        """a @ b를 돌려줍니다."""
        self.multiplications += a.shape[0] * a.shape[1] * b.shape[1]
        return a @ b

    def next_round(self):
        """다음 계산은 지금까지의 결과가 필요합니다."""
        self.rounds += 1


def softmax(scores):
    """마지막 축의 소프트맥스입니다."""
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def self_attention(x, count):
    """x가 쿼리, 키, 밸류가 되는 어텐션입니다."""
    scores = count.product(x, x.T) / np.sqrt(x.shape[1])
    count.next_round()
    mixed = count.product(softmax(scores), x)
    count.next_round()
    return mixed


def restricted_attention(x, reach, count):
    """같은 계산이지만, 각 자리가 자신과 양쪽의 `reach`개 자리만 봅니다."""
    rows = []
    for i in range(len(x)):  # 어느 행도 다른 행을 기다리지 않습니다
        near = x[max(i - reach, 0) : i + reach + 1]
        scores = count.product(x[i : i + 1], near.T) / np.sqrt(x.shape[1])
        rows.append(count.product(softmax(scores), near))
    count.next_round()
    count.next_round()
    return np.concatenate(rows)


def recurrent(x, kernel, state_kernel, count):
    """h_i = tanh(x_i W + h_(i-1) U)입니다."""
    inputs = count.product(x, kernel)
    count.next_round()
    state, states = np.zeros_like(inputs[:1]), []
    for row in inputs:
        state = np.tanh(row + count.product(state, state_kernel))
        count.next_round()  # 다음 자리가 이 상태를 기다립니다
        states.append(state)
    return np.concatenate(states)


def convolution(x, kernels, count):
    """y_i는 자신과 지난 자리, 모두 k개 자리의 x_(i-j) K_j를 더한 값입니다."""
    k = len(kernels)
    padded = np.concatenate([np.zeros((k - 1, x.shape[1])), x])
    terms = [count.product(padded[j : j + len(x)], kernels[j]) for j in range(k)]
    count.next_round()
    return sum(terms)


# %% [markdown]
# 이제 $n = 40$개의 토큰, 폭 $d = 16$, 필터 $k = 3$, 이웃 $r = 5$(양쪽에 둘씩, 그리고 자신)로 세어 봅니다.

# %%
n, d, k, reach = 40, 16, 3, 2
r = 2 * reach + 1
x = random.normal(size=(n, d))
kernel, state_kernel = random.normal(size=(2, d, d)) / np.sqrt(2 * d)
kernels = random.normal(size=(k, d, d)) / np.sqrt(k * d)

counts = {name: Counter() for name in ("self-attention", "recurrent", "convolutional", "restricted")}
by_hand = {
    "self-attention": self_attention(x, counts["self-attention"]),
    "recurrent": recurrent(x, kernel, state_kernel, counts["recurrent"]),
    "convolutional": convolution(x, kernels, counts["convolutional"]),
    "restricted": restricted_attention(x, reach, counts["restricted"]),
}
for name, count in counts.items():
    print(f"{name:16}곱셈 {count.multiplications:8,}번, 차례 {count.rounds:3}번")

# %% [markdown]
# 표의 차수가 맞습니다. 표에서 빠진 상수도 작습니다. 어텐션은 두 번(스코어와 가중합), 순환층도 두 번(입력과 상태)
# 곱합니다. 문장의 양 끝에서는 이웃이 적으므로, 제한된 어텐션은 $2 r n d$보다 조금 적게 곱합니다.
#
# 이 예에서는 어텐션의 곱셈이 51,200번으로 순환층의 20,480번보다 많습니다. 두 수는 $2 n^2 d$와 $2 n d^2$이므로 비는
# $n / d = 40 / 16 = 2.5$입니다. 곧 $n > d$이면 어텐션의 계산량이 더 많고, $n < d$이면 더 적습니다. 세기 쉽도록 $d$를
# 작게 잡은 예이고, 문장을 번역하는 모델에서는 대개 $n < d$입니다(아래).
#
# 이제 차례의 수를 봅시다. 어텐션은 길이와 상관없이 두 차례면 됩니다. 순환층은 토큰마다 한 차례가 필요하고, 코어가 더
# 많은 컴퓨터도 이것을 줄이지 못합니다.

# %%
assert counts["self-attention"].multiplications == 2 * n**2 * d
assert counts["recurrent"].multiplications == 2 * n * d**2
assert counts["convolutional"].multiplications == k * n * d**2
missing = reach * (reach + 1)  # 양 끝에서 모자라는 이웃의 수
assert counts["restricted"].multiplications == 2 * (r * n - missing) * d
assert {name: count.rounds for name, count in counts.items()} == {
    "self-attention": 2,
    "recurrent": n + 1,
    "convolutional": 1,
    "restricted": 2,
}

# %% [markdown]
# 이것이 정말 모델이 쓰는 층일까요? 같은 입력과 행렬을 라이브러리의 어텐션과 Keras의 층에 넣어 봅니다. 네 가지
# 모두 결과가 같습니다.
#
# `kt.layers.dot_product_attention`은 `(batch, num_heads, length, key_dim)` 모양의 입력을 받습니다. `window=3`은 거리가
# 3보다 작다는 뜻이므로, 양쪽에 둘씩 봅니다.

# %%
batch = x[None].astype("float32")
heads = batch[None]

whole, _ = kt.layers.dot_product_attention(heads, heads, heads)
near, _ = kt.layers.dot_product_attention(heads, heads, heads, window=reach + 1)
rnn = keras.layers.SimpleRNN(d, return_sequences=True, use_bias=False)
rnn.build(batch.shape)
rnn.set_weights([kernel, state_kernel])
convolved = keras.layers.Conv1D(d, k, padding="causal", use_bias=False)
convolved.build(batch.shape)
convolved.set_weights([kernels])

np.testing.assert_allclose(whole[0, 0], by_hand["self-attention"], atol=1e-5)
np.testing.assert_allclose(near[0, 0], by_hand["restricted"], atol=1e-5)
np.testing.assert_allclose(rnn(batch)[0], by_hand["recurrent"], atol=1e-4)
np.testing.assert_allclose(convolved(batch)[0], by_hand["convolutional"], atol=1e-4)

# %% [markdown]
# ## 어느 쪽의 비용이 적을까요?
#
# 두 비용을 나누면 $\frac{n^2 d}{n d^2} = \frac{n}{d}$입니다. 문장의 길이가 벡터의 폭보다 짧으면 셀프 어텐션이
# 순환층보다 비용이 적습니다. 논문의 base 모델은 $d = 512$이고, 문장 하나는 30토큰쯤입니다. 이때 어텐션의 곱셈은
# 순환층의 17분의 1입니다. 10만 토큰짜리 책에서는 사정이 뒤집힙니다. 그래서 가까운 자리만 보는 *창*(window), 곧 제한된
# 셀프 어텐션을 씁니다.
#
# 여기서는 스코어와 가중합만 셌습니다. 어텐션 층 전체에는 선형 투영(projection) 네 개(쿼리, 키, 밸류, 출력)도 있고, 그
# 비용은 $4 n d^2$입니다. $n$이 $2d$보다 작으면 투영의 비용이 더 큽니다. 논문의 표는 투영을 세지 않습니다. 투영까지
# 세면 어텐션 층의 곱셈은 $2 n^2 d + 4 n d^2$번이고, 위의 단순한 순환층의 $n/d + 2$배입니다. $n = 30$, $d = 512$이면
# 두 배가 조금 넘습니다. LSTM은 무엇을 남기고 지울지도 계산하느라 행렬이 네 배라서 $8 n d^2$번 곱하므로 그보다
# 많습니다. 그러니 짧은 문장에서 어텐션이 빠른 까닭은 곱셈의 수보다 차례의 수에 있습니다.

# %%
for length in (30, 512, 100_000):
    print(f"n = {length:7,}: 어텐션 / 순환층 = {length**2 * 512 / (length * 512**2):8.3f}")
assert round(512 / 30) == 17

scores_and_mixture, projections = 2 * 1024**2 * 512, 4 * 1024 * 512**2
assert scores_and_mixture == projections  # n = 2d

# %% [markdown]
# ## 경로의 길이를 재어 봅시다
#
# 첫 토큰과 마지막 토큰 사이에는 층이 몇 개 있을까요? 출력 $n-1$을 입력 $0$으로 미분한 값이 0이 아니면 그 층에는
# 경로가 있습니다. 그래서 기울기가 도착할 때까지 층을 쌓고 그 수를 셉니다. $n = 27 = 3^3$으로 합니다.
#
# 논문의 $\log_k n$은 *팽창*(dilated) 합성곱의 값입니다. 둘째 층은 세 칸마다, 셋째 층은 아홉 칸마다 한 자리를 봅니다.
# 팽창이 없으면 약 $n / k$개의 층이 필요합니다(여기서는 층마다 $k - 1 = 2$칸 앞까지 봅니다).


# %%
def gradient_by_place(layers, length, width=8):
    """마지막 출력이 각 입력에 얼마나 의존하는지를 `(length,)`로 돌려줍니다."""
    x = tf.constant(np.random.default_rng(0).normal(size=(1, length, width)), "float32")
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = x
        for layer in layers:
            y = layer(y)
        last = tf.reduce_sum(y[0, -1] * tf.range(1.0, width + 1))
    return np.linalg.norm(tape.gradient(last, x)[0], axis=-1)


def layers_needed(make_layer, length):
    """마지막 출력이 첫 입력에 의존할 때까지 층을 쌓습니다."""
    layers = [make_layer(0)]
    while gradient_by_place(layers, length)[0] == 0:
        layers.append(make_layer(len(layers)))
    return len(layers)


class SelfAttention(kt.layers.MultiHeadAttention):
    """자기 자신에 대한 어텐션입니다."""

    def call(self, x):
        return super().call(x, x)

    def build(self, shape):
        super().build(shape, shape)


long = 27
depths = {
    "self-attention": layers_needed(lambda i: SelfAttention(2, 4), long),
    "convolutional, dilated": layers_needed(
        lambda i: keras.layers.Conv1D(8, 3, padding="causal", dilation_rate=3**i), long
    ),
    "convolutional": layers_needed(lambda i: keras.layers.Conv1D(8, 3, padding="causal"), long),
    "restricted, r = 5": layers_needed(lambda i: SelfAttention(2, 4, sliding_window=3), long),
}
print(depths)
assert depths == {
    "self-attention": 1,
    "convolutional, dilated": 3,  # log_3 27
    "convolutional": 13,  # 26 / 2
    "restricted, r = 5": 13,  # 층마다 두 칸
}

# %% [markdown]
# 제한된 셀프 어텐션은 표의 $n / r = 27 / 5$보다 많은 13층이 필요합니다. $r$은 양쪽의 이웃과 자신을 모두 센 수이기
# 때문입니다. $r = 5$이면 한 층에서 한쪽으로는 $(r - 1) / 2 = 2$칸만 갑니다. 신호는 첫 토큰에서 마지막 토큰까지 한
# 방향으로 가므로 $26 / 2 = 13$층이 필요합니다. 표의 값은 차수이므로 상수배가 빠져 있고, 그 상수가 여기서는
# $13 / 5.4 \approx 2.4$입니다.
#
# 이 목록에는 순환층이 없습니다. 순환층은 한 층이면 되기 때문입니다. 그러나 그 안에서 신호는 $n$개의 셀을 지나가고,
# 셀마다 약해질 수 있습니다. 그래서 얼마나 남는지 잽니다. 학습하지 않은 LSTM과 학습하지 않은 어텐션에서, 마지막 출력을
# 각 입력으로 미분한 값입니다.

# %%
distance = np.arange(64)[::-1]
gradients = {
    "self-attention": gradient_by_place([SelfAttention(2, 4)], 64),
    "LSTM": gradient_by_place([keras.layers.LSTM(8, return_sequences=True)], 64),
}
for name, gradient in gradients.items():
    print(f"{name:16}60칸 떨어진 곳: {gradient[3]:.1e}, 2칸 떨어진 곳: {gradient[61]:.1e}")
assert gradients["LSTM"][3] < 1e-3 * gradients["LSTM"][61]
assert gradients["self-attention"][3] > 1e-2 * gradients["self-attention"][61]

# %% [markdown]
# ## 시간을 재어 봅시다
#
# 계산량이 곧 시간은 아닙니다. 그래서 길이를 늘려 가면서 각 층을 다섯 번 실행하고 중앙값을 구합니다. 수치는 컴퓨터마다
# 다르므로, 밀리초보다 곡선의 기울어진 정도를 비교해 봅시다.


# %%
def milliseconds(layer, length, width=64):
    """순방향 계산 시간의 중앙값을 밀리초로 돌려줍니다."""
    x = tf.random.normal((1, length, width))
    run = tf.function(layer)
    run(x)  # 함수를 만드는 시간은 재지 않습니다
    times = []
    for _ in range(5):
        began = time.perf_counter()
        run(x).numpy()
        times.append(time.perf_counter() - began)
    return 1000 * np.median(times)


lengths = [64, 128, 256, 512, 1024, 2048]
timed = {
    "self-attention": SelfAttention(1, 64),
    "restricted": SelfAttention(1, 64, sliding_window=32),
    "recurrent": keras.layers.LSTM(64, return_sequences=True, use_cudnn=False),
    "convolutional": keras.layers.Conv1D(64, 3, padding="causal"),
}
times = {name: [milliseconds(layer, length) for length in lengths] for name, layer in timed.items()}

# %%
colours = {
    "self-attention": "#3a6ea5",
    "restricted": "#2a9d8f",
    "recurrent": "#d1603d",
    "convolutional": "#8a6fb0",
}
labels = {
    "self-attention": "셀프 어텐션",
    "restricted": "제한된 어텐션",
    "recurrent": "순환층(LSTM)",
    "convolutional": "합성곱층",
}

# %% tags=["hide-input"]
plt.rcParams["font.family"] = font_families(*labels.values())
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
for name, values in times.items():
    left.loglog(lengths, values, "o-", color=colours[name], label=labels[name])
left.set(
    xlabel="길이 n (토큰)",
    ylabel="밀리초",
    title="한 층의 시간, d = 64",
)
left.set_xticks(lengths, map(str, lengths))
left.minorticks_off()
left.legend()
right.semilogy(
    distance, gradients["self-attention"], color=colours["self-attention"], label=labels["self-attention"]
)
right.semilogy(distance, gradients["LSTM"], color=colours["recurrent"], label=labels["recurrent"])
right.set(
    xlabel="마지막 토큰에서 떨어진 거리 (칸)",
    ylabel="기울기의 크기",
    title="마지막 출력이 각 입력에 의존하는 정도",
)
right.legend()
plt.show()

# %% [markdown]
# **그림 읽기.** 왼쪽에서 순환층의 선은 높고 곧습니다. 길이가 두 배가 되면 시간도 두 배가 됩니다. 각 단계가 앞 단계를
# 기다리기 때문입니다. 셀프 어텐션은 대개 그보다 아래에서 시작하고, 끝에서는 가장 가파른 선이 됩니다. 이것이
# $n^2$입니다. 길이가 짧을 때는 연산을 시작하는 고정 비용이 시간의 대부분입니다. 오른쪽에서 LSTM의 기울기는 60칸 안에서
# 여러 자릿수만큼 작아집니다. 어텐션의 기울기는 거리가 멀어도 작아지지 않습니다. 모든 토큰까지의 경로가 1이기
# 때문입니다.

# %% [markdown]
# ## 연습 문제
#
# ### 5분 문제
#
# 표 1의 마지막 행에는 대가가 있습니다. 창은 경로를 길게 만듭니다. `sliding_window=w`인 어텐션은 한 층에서
# 양쪽으로 $w - 1$칸을 봅니다.
#
# 1. 토큰이 65개일 때, 마지막 토큰이 첫 토큰을 알려면 `sliding_window=9`인 층이 몇 개 필요할까요?
# 2. 창이 있는 층 하나 위에 창이 *없는* 층 하나를 올리면 더 적은 층으로 될까요? 층의 수를 세어 봅시다.
#
# 먼저 종이에 답을 쓰고, `layers_needed`로 확인해 봅시다.

# %% tags=["hide-cell"]
# 1. 첫 토큰까지 64칸이고 한 층이 8칸을 보므로 8층이 필요합니다.
windowed = layers_needed(lambda i: SelfAttention(2, 4, sliding_window=9), 65)
mixed = layers_needed(lambda i: SelfAttention(2, 4, sliding_window=None if i == 1 else 9), 65)
assert windowed == 64 // 8 == 8
assert mixed == 2  # 2. 두 층이면 됩니다. 창이 없는 층은 모든 자리를 한 번에 잇습니다
print(windowed, mixed)

# %% [markdown]
# ### 한 시간 문제
#
# 행이 `length`개인 행렬을 받는 `window_attention(query, key, value, window)`를 작성합니다. 출력은 마스크를 쓴 전체
# 표와 같습니다. 쿼리 $i$는 양쪽으로 `window`보다 가까운 키만 봅니다. 다만 메모리는 $n^2$이 아니라 $n \cdot w$에
# 비례해야 합니다. 20,000행이 100 MB에 들어가야 합니다.
#
# `answer.py`에 NumPy만으로 작성합니다. `python course/check.py 11 answer.py`를 실행하면 맞는 성질과 틀린 성질을 알려
# 줍니다. 풀이는 공개하지 않습니다.
#
# ### 프로젝트
#
# 표 1을 가진 컴퓨터에서 측정합니다. 폭이 같은 어텐션 층, LSTM, 합성곱을 길이 16부터 4,096까지, 순방향과 기울기
# 계산까지 잽니다. 시간과 메모리를 로그 축에 그립니다. 곡선은 어디에서 만나고, 왜 표와 다른 곳에서 만날까요?

# %% [markdown]
# ## 더 읽을거리
#
# - Vaswani et al., 2017, ["Attention Is All You Need"](https://arxiv.org/abs/1706.03762), 4절과 표 1
# - Beltagy et al., 2020, ["Longformer"](https://arxiv.org/abs/2004.05150): 창과 몇 개의 전역 토큰을 함께 쓰는 방법.
#   연습 문제와 비슷한 생각입니다
# - 이 라이브러리의 문서: *Building blocks*의 "Long sequences", 더 큰 층과 학습 단계 전체를 잰 *Benchmarks*의
#   "What the paper's table 1 claims"
# - 다음 장: **12a. 학습: 워밍업과 레이블 스무딩**
