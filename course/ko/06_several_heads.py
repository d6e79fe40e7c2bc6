# %% [markdown]
# # 6. 멀티헤드 어텐션
#
# 이 장을 마치면 한 층에 어텐션이 여러 개 나란히 있는 까닭, 512차원이 64차원 헤드(head) 8개로 나뉘는 방법, 그리고 행렬
# $W^O$의 역할을 알게 됩니다. 헤드를 직접 나누고 이어 붙이며, 라이브러리의 층이 똑같은 결과를 내놓는 것을 확인합니다.
#
# **먼저 읽을 것:** 4장과 5장(손으로 계산하는 셀프 어텐션, $\sqrt{d_k}$로 나누기).

# %% [markdown]
# ## 소프트맥스 하나로는 한 곳에만 집중할 수 있습니다
#
# 소프트맥스가 내놓는 어텐션 가중치는 모두 더하면 1입니다. 어떤 토큰에 0.9를 주면 나머지 모두에게 남는 것은 0.1뿐입니다.
# 그런데 단어 하나에는 다른 단어 여러 개가, 저마다 다른 이유로 한꺼번에 필요할 때가 많습니다. "The animal did not cross
# the street because **it** was too tired"라는 문장을 봅시다. "it"은 무엇을 가리키는지 알려면 "animal"이 필요하고, 어떤
# 상태인지 알려면 "tired"가 필요합니다.
#
# 어텐션 하나가 둘에게 0.5씩 주면 되지 않을까요? 그럴 수는 있지만 그 결과는 두 밸류의 *평균*입니다. 평균만 보아서는
# 무엇이 어느 단어에서 왔는지 알 수 없습니다. 어텐션 두 개가 결과를 따로 내면 두 밸류가 섞이지 않습니다. 이 어텐션
# 하나하나를 *헤드*라고 합니다.

# %%
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import matplotlib.pyplot as plt
import numpy as np

import keras_transformer as kt
from keras_transformer.fonts import font_families

keras.utils.set_random_seed(6)
random = np.random.default_rng(6)

# %%
words = ["animal", "street", "tired"]
values = np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]])  # 무엇인가, 어떠한가
one_head = np.array([0.5, 0.0, 0.5]) @ values
two_heads = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]) @ values
swapped = np.array([0.5, 0.0, 0.5]) @ values[::-1]  # 두 단어의 자리가 바뀐 다른 문장
print("헤드 하나:", one_head, "헤드 둘:", two_heads.tolist())
np.testing.assert_array_equal(one_head, swapped)  # 헤드 하나로는 두 문장을 구별할 수 없습니다

# %% [markdown]
# ## 512차원을 64차원 헤드 8개로 나눕니다
#
# 헤드가 많아진다고 비용이 늘어서는 안 됩니다. 그래서 논문은 헤드마다 512차원을 쓰지 않고, 512차원을 여러 헤드에 나누어
# 줍니다. $d_{model} = 512$이고 헤드가 $h = 8$개이면, 헤드마다 쿼리와 키와 밸류는 $d_k = 512 / 8 = 64$차원 벡터입니다.
#
# $$\text{head}_i = \text{Attention}(Q W_i^Q,\ K W_i^K,\ V W_i^V) \qquad
# \text{MultiHead}(Q, K, V) = \text{Concat}(\text{head}_1, \ldots, \text{head}_h)\, W^O$$
#
# 여기서 $Q$, $K$, $V$는 행렬을 곱하기 *전의* 입력입니다. 5장에서는 곱한 다음의 쿼리, 키, 밸류였습니다. 셀프
# 어텐션에서는 셋 다 같은 $x$입니다. $W_i^Q$ 하나는 512행 64열입니다. 64차원인 결과 여덟 개를 나란히 이어
# 붙이면(concatenate) 다시 512차원 벡터가 됩니다. 그다음 512×512 행렬인 $W^O$가 헤드들이 찾은 것을 섞습니다. 이 행렬이
# 없으면 앞의 64차원에는 첫 번째 헤드가 찾은 것만 들어 있습니다.
#
# 작은 행렬 여덟 개를 하나씩 곱하지는 않습니다. 나란히 놓으면 512×512 행렬 하나입니다. 곱셈 한 번으로 모든 헤드를
# 계산하고 `reshape`로 자릅니다.

# %%
d_model, num_heads, length = 512, 8, 5
d_k = d_model // num_heads
assert d_k == 64

x = random.normal(size=(length, d_model))
w_query, w_key, w_value, w_output = random.normal(size=(4, d_model, d_model)) / np.sqrt(d_model)


def softmax(scores):
    """스코어의 행마다 합이 1인 어텐션 가중치로 바꿉니다."""
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def split(vectors):
    """(길이, 512)를 (8, 길이, 64)로 자릅니다. 헤드마다 표가 하나씩입니다."""
    return vectors.reshape(length, num_heads, d_k).transpose(1, 0, 2)


queries, keys, values = split(x @ w_query), split(x @ w_key), split(x @ w_value)
weights = softmax(queries @ keys.transpose(0, 2, 1) / np.sqrt(d_k))
heads = weights @ values
joined = heads.transpose(1, 0, 2).reshape(length, d_model)
outputs = joined @ w_output

for name, table in {
    "queries": queries,
    "weights": weights,
    "heads": heads,
    "joined": joined,
    "outputs": outputs,
}.items():
    print(f"{name:8s} {table.shape}")
assert w_query[:, :d_k].shape == (512, 64)
assert joined.shape == (5, 512)

# %% [markdown]
# 두 번째 헤드를 그 헤드의 작은 행렬로 따로 계산해도 큰 곱셈의 두 번째 조각과 같은 결과가 나옵니다. 곱한 뒤에 자르는
# 것과, 자른 행렬로 곱하는 것은 같습니다.

# %%
second = slice(d_k, 2 * d_k)
q, k, v = x @ w_query[:, second], x @ w_key[:, second], x @ w_value[:, second]
np.testing.assert_allclose(softmax(q @ k.T / np.sqrt(64)) @ v, heads[1], atol=1e-9)

# %% [markdown]
# ## 라이브러리의 층과 비교합니다
#
# `kt.MultiHeadAttention(8, 64)`는 Keras에 있는 같은 이름의 층에 번역문을 쓸 때 필요한 기능(10장)을 더한 것입니다.
# Keras는 층의 행렬을 *커널*(kernel)이라고 부릅니다. 이 층의 커널에는 헤드를 위한 축이 있습니다. 쿼리의 커널은
# `(512, 8, 64)`입니다. 이 층에 우리의 행렬을 넣어 봅시다.

# %%
attention = kt.MultiHeadAttention(num_heads, d_k, use_bias=False)
attention.build((1, length, d_model), (1, length, d_model))
kernels = [w.reshape(d_model, num_heads, d_k) for w in (w_query, w_key, w_value)]
attention.set_weights([*kernels, w_output.reshape(num_heads, d_k, d_model)])
for weight in attention.weights:
    print(weight.path.split("/", 1)[1], tuple(weight.shape))

found, found_weights = attention(
    x[None].astype("float32"), x[None].astype("float32"), return_attention_scores=True
)
np.testing.assert_allclose(found[0], outputs, atol=1e-4)
np.testing.assert_allclose(found_weights[0], weights, atol=1e-5)

# %% [markdown]
# 이 층의 파라미터(parameter, 모델이 학습하는 가중치)는 모두 몇 개일까요? 헤드가 1개이든 8개이든 64개이든 512×512 행렬
# 네 개입니다. 헤드를 늘려도 파라미터의 수는 그대로입니다. 있는 것을 나누어 쓸 뿐입니다.

# %%
for count in (1, 8, 64):
    layer = kt.MultiHeadAttention(count, d_model // count, use_bias=False)
    layer.build((1, length, d_model), (1, length, d_model))
    print(f"헤드 {count:2d}개: {layer.count_params():,}")
    assert layer.count_params() == 4 * 512 * 512

# %% [markdown]
# ## 어떤 과제에는 헤드가 두 개 필요합니다
#
# 헤드는 정말 서로 다른 곳을 보도록 학습될까요? 헤드가 두 개 필요한 과제를 만들어 봅시다. 난수 여덟 개로 된 수열이
# 있습니다. 각 자리의 답은 수열의 *첫* 수에서 그 자리의 *바로 앞* 수를 뺀 값입니다. 첫 자리에는 바로 앞의 수가 없으므로
# 둘째 자리부터 답합니다. 헤드 하나는 모든 밸류를 같은 행렬로 만들고 양수인 가중치로 더하므로, 한 수에서 다른 수를 빼기
# 어렵습니다. 어텐션은 순서를 모르므로(4장의 연습 문제) 자리도 원-핫 벡터로 입력에 넣습니다. 크기가 같은 층 두 개를
# 학습합니다. 하나는 헤드가 하나, 다른 하나는 두 개입니다.

# %%
steps, size = 8, 32


def batch(number):
    """난수로 된 수열과 자리, 그리고 답을 만듭니다."""
    numbers = random.normal(size=(number, steps))
    places = np.broadcast_to(np.eye(steps), (number, steps, steps))
    before = np.roll(numbers, 1, axis=1)
    return np.concatenate([numbers[..., None], places], axis=-1), (numbers[:, :1] - before)[:, 1:]


def train(count):
    """헤드가 count개인 층을 학습하고, 어텐션 맵과 새 수열에서의 오차를 돌려줍니다."""
    keras.utils.set_random_seed(6)
    inputs = keras.Input((steps, 1 + steps))
    widen = keras.layers.Dense(size)
    wide = widen(inputs)
    layer = kt.MultiHeadAttention(count, size // count)
    answers = keras.layers.Dense(1)(layer(wide, wide))
    model = keras.Model(inputs, answers[:, 1:, 0])
    model.compile(keras.optimizers.Adam(5e-3), "mse")
    model.fit(*batch(24_000), batch_size=64, verbose=0)
    sequences = widen(batch(200)[0])
    _, maps = layer(sequences, sequences, return_attention_scores=True)
    return maps.numpy().mean(axis=0), model.evaluate(*batch(2000), verbose=0)


maps_one, error_one = train(1)
maps_two, error_two = train(2)
print(f"평균 제곱 오차: 헤드 하나 {error_one:.3f}, 헤드 둘 {error_two:.3f}")
assert error_two < 0.5 * error_one

# %% [markdown]
# 어텐션 맵(attention map)을 봅시다. 행은 묻는 자리이고 열은 읽히는 자리입니다. 수열 200개의 평균입니다. 둘째 자리의
# 답은 언제나 0이므로 그 행은 넘어갑시다. 헤드가 하나뿐이면 첫째 열, 곧 첫 수만 읽고 바로 앞의 수는 읽지 않습니다.
# 헤드가 둘이면 첫째 열과 대각선 바로 아래를 모두 읽습니다. 다만 일을 바라는 만큼 깔끔하게 나누지는 않습니다. 한 헤드가
# 어떤 자리에서는 첫 수를, 다른 자리에서는 바로 앞의 수를 읽고, 한 자리에서 두 수를 나누어 읽기도 합니다. 헤드가 일을
# 깔끔하게 나누도록 학습하는 것은 아니기 때문입니다. 어텐션을 읽을 때 이 점을 기억해 둡시다(13장).

# %%
tables = [*maps_one, *maps_two]
titles = ["하나뿐인 헤드", "헤드 둘: 헤드 1", "헤드 둘: 헤드 2"]
axis_names = "읽히는 자리", "묻는 자리"

# %% tags=["hide-input"]
plt.rcParams["font.family"] = font_families(*titles, *axis_names)
figure, panels = plt.subplots(1, 3, figsize=(10, 3.5), layout="constrained", sharey=True)
for axes, table, title in zip(panels, tables, titles, strict=True):
    axes.imshow(table[1:], cmap="Blues", vmin=0, vmax=1, extent=(0.5, steps + 0.5, steps + 0.5, 1.5))
    axes.set_title(title)
    axes.set_xlabel(axis_names[0])
panels[0].set_ylabel(axis_names[1])
plt.show()

# %%
rows = range(2, steps)
before_one = np.mean([tables[0][i, i - 1] for i in rows])
before_two = np.mean([max(table[i, i - 1] for table in tables[1:]) for i in rows])
print(f"바로 앞의 수에 준 어텐션 가중치: 헤드 하나 {before_one:.2f}, 둘 가운데 큰 쪽 {before_two:.2f}")
assert before_two > 3 * before_one

# %% [markdown]
# ## 연습 문제
#
# ### 5분 문제
#
# $d_{model} = 512$이고 헤드가 8개인 모델이 있습니다. 3번 헤드를 없애려고, $W^O$에서 그 헤드를 읽는 64행을 0으로
# 바꿉니다.
#
# 1. 몇째 행부터 몇째 행까지일까요?
# 2. 3번 헤드의 밸류가 0일 때와 결과가 같을까요?
# 3. 헤드를 완전히 지운다면, 파라미터 $4 \cdot 512 \cdot 512$개 가운데 몇 개를 지울 수 있을까요?

# %% tags=["hide-cell"]
# 1. `joined`의 512차원에서 첫 64차원은 헤드 1, 다음 64차원은 헤드 2, 그다음 64차원은 헤드 3의 결과입니다.
#    따라서 129행부터 192행까지입니다.
third = slice(2 * d_k, 3 * d_k)
# 2. 같습니다. W^O의 한 행은 `joined`의 한 성분에만 곱해집니다. 그 행이 0이든 그 성분이 0이든 곱은 0입니다.
#    밸류가 모두 0이면 어텐션 가중치가 무엇이든 가중합이 0이므로, 헤드 3의 성분은 모두 0입니다.
without_rows = w_output.copy()
without_rows[third] = 0
silent = heads.copy()
silent[2] = 0
np.testing.assert_allclose(
    joined @ without_rows, silent.transpose(1, 0, 2).reshape(length, d_model) @ w_output
)
# 3. 행렬 W^Q, W^K, W^V에서 64열씩, W^O에서 64행을 지울 수 있습니다. 밸류가 쓰이지 않으면 그 헤드의 어텐션
#    가중치도 쓰이지 않으므로, 쿼리와 키를 만드는 열도 필요 없습니다. 모두 131,072개이고 전체의 8분의 1입니다.
deleted = 3 * 512 * 64 + 64 * 512
assert deleted == 4 * 512 * 512 // 8
print("행", third.start + 1, "-", third.stop, "파라미터:", f"{deleted:,}")

# %% [markdown]
# ### 한 시간 문제
#
# `multi_head_attention(x, memory, w_query, w_key, w_value, w_output, num_heads)`를 작성합니다. 쿼리는 `x`에서, 키와
# 밸류는 `memory`에서 나오고, 행렬은 모두 $d_{model} \times d_{model}$입니다. $i$번째 헤드는 $i$번째 열 묶음을 씁니다.
# `memory`의 길이가 달라도 맞아야 합니다.
#
# `answer.py`에 NumPy만으로 작성합니다. `python course/check.py 6 answer.py`를 실행하면 맞는 성질과 틀린 성질을 알려
# 줍니다. 풀이는 공개하지 않습니다.
#
# ### 프로젝트
#
# 어느 헤드를 없애도 될까요? 작은 번역기(16장)를 학습하고, $W^O$에서 헤드의 행을 0으로 바꾸어 헤드를 하나씩 없애
# 봅니다. 그때마다 번역이 얼마나 맞는지 잽니다. 그다음 중요하지 않은 헤드부터 차례로 없앱니다. 품질이 떨어질 때 헤드가
# 몇 개 남아 있나요?

# %% [markdown]
# ## 더 읽을거리
#
# - Vaswani et al., 2017, ["Attention Is All You Need"](https://arxiv.org/abs/1706.03762), 3.2.2절과 표 3의 (A): 헤드가
#   하나이면 여덟 개일 때보다 BLEU가 0.9 낮고, 너무 많아도 나빠집니다
# - Voita et al., 2019, ["Analyzing Multi-Head Self-Attention"](https://arxiv.org/abs/1905.09418): 없애도 되는 헤드
# - 이 라이브러리: `num_key_value_heads`를 쓰면 여러 헤드가 키와 밸류를 함께 씁니다
# - 다음 장: **7. 마스크**
