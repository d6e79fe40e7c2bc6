# %% [markdown]
# # 9. 블록
#
# 이 장을 마치면 트랜스포머를 부품으로 조립할 수 있습니다. 잔차 연결(residual connection), 층 정규화(layer
# normalization), 피드 포워드 신경망(feed-forward network), 인코더 층, 그리고 교차 어텐션(cross-attention)이 있는
# 디코더 층입니다. 인코더 층을 손으로 계산해서 라이브러리와 같은 값을 얻습니다.
#
# **먼저 읽을 것:** 6장부터 8장까지(헤드, 마스크, 위치).

# %% [markdown]
# ![트랜스포머. 이 장의 부분에 색이 있습니다](../../docs/images/transformer_9.ko.svg)
#
# 모델 전체입니다. 색이 있는 부분이 이 장에서 만드는 층과 서브층, 그리고 그 둘레를 지나는 잔차 연결입니다. `Q`,
# `K`, `V`는 쿼리, 키, 밸류입니다.

# %% [markdown]
# ## 잔차 연결
#
# 어텐션은 벡터를 다른 벡터들의 가중합으로 바꿉니다. 여섯 층을 지나면 단어 자신의 정보는 거의 남지 않을 것입니다.
# 그래서 각 서브층(sublayer)은 입력에 *더하기만* 합니다.
#
# $$x + \text{Sublayer}(x)$$
#
# 입력에는 모든 층을 곧게 지나가는 지름길(shortcut)이 있고, 되돌아오는 기울기(gradient)도 그 지름길을 지나갑니다.
# 측정해 봅시다. 30개 층의 첫째 층에 닿는 기울기가 지름길이 있을 때와 없을 때 어떻게 다를까요? 가장 단순한 층, 곧
# 무작위 행렬 하나를 곱하는 층을 씁니다. 연쇄 법칙에 따라 층마다 미분을 곱합니다. 지름길이 없으면 층의 미분은 그
# 행렬이고, 지름길이 있으면 그 행렬에 단위행렬을 더한 것입니다.

# %%
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import matplotlib.pyplot as plt
import numpy as np

import keras_transformer as kt
from keras_transformer.fonts import font_families

keras.utils.set_random_seed(9)
random = np.random.default_rng(9)

# %%
depth, width = 30, 64
kernels = random.normal(size=(depth, width, width)) * 0.5 / np.sqrt(width)
slopes = {"잔차 있음": [], "잔차 없음": []}
for name, shortcut in zip(slopes, (np.eye(width), 0), strict=True):
    gradient = np.eye(width)
    for kernel in kernels[::-1]:
        gradient = (shortcut + kernel) @ gradient  # 층마다 연쇄 법칙
        slopes[name].append(np.linalg.norm(gradient) / np.sqrt(width))
    print(f"{name}: {slopes[name][-1]:.2e}")
with_shortcut, without = (values[-1] for values in slopes.values())
assert without < 1e-6 < 1 < with_shortcut

# %% [markdown]
# ## 층 정규화
#
# 지름길이 있으면 벡터의 성분이 층마다 *커집니다*. 그래서 더한 값을 정규화합니다. 벡터의 평균은 0, 표준편차는 1이
# 됩니다. 그다음 모델이 학습하는 배율 $\gamma$를 곱하고 편향 $\beta$를 더해 알맞은 크기로 만듭니다.
#
# $$\text{LayerNorm}(x) = \gamma \cdot \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta$$
#
# $\mu$와 $\sigma^2$은 벡터의 평균과 분산이고, $\epsilon$은 0으로 나누지 않게 하는 작은 수입니다. *배치* 정규화(batch
# normalization)는 채널마다 배치 전체에서 평균을 냅니다. *층* 정규화는 토큰 하나 안에서 모든 채널의 평균을 냅니다. 행이
# 토큰이고 열이 채널인 표에서, 배치 정규화는 열을 따라 내려가고 층 정규화는 행을 따라갑니다. 그래서 층 정규화는 같은
# 배치의 다른 문장에 영향을 받지 않습니다. 문장은 혼자 있을 때나 배치 안에 있을 때나, 학습 중에나 그 뒤에나 같은 결과를
# 얻습니다.


# %%
def layer_norm(x, epsilon=1e-6):
    """행마다 정규화합니다."""
    return (x - x.mean(axis=-1, keepdims=True)) / np.sqrt(x.var(axis=-1, keepdims=True) + epsilon)


rows = random.normal(3, 5, size=(4, 6))
np.testing.assert_allclose(layer_norm(rows).mean(axis=1), 0, atol=1e-9)
np.testing.assert_allclose(layer_norm(rows).std(axis=1), 1, atol=1e-5)
np.testing.assert_allclose(layer_norm(rows)[:1], layer_norm(rows[:1]))  # 혼자일 때도 배치 안에서와 같습니다


def batch_norm(x):
    """열마다 정규화합니다."""
    return (x - x.mean(axis=0)) / np.sqrt(x.var(axis=0) + 1e-6)


assert np.abs(batch_norm(rows)[:1] - batch_norm(rows[:2])[:1]).max() > 0.1  # 이웃에 따라 달라집니다

names = ("배치 정규화: 열마다", "층 정규화: 행마다")
labels = ("채널", "토큰", "지나간 층", "기울기의 크기")

# %% tags=["hide-input"]
plt.rcParams["font.family"] = font_families(*names, *labels, *slopes)
figure, (left, middle, right) = plt.subplots(1, 3, figsize=(10.5, 3), layout="constrained")
for name, values in slopes.items():
    left.semilogy(range(1, depth + 1), values, label=name)
left.set(xlabel=labels[2], ylabel=labels[3])
left.legend()
for axes, table, name in ((middle, batch_norm(rows), names[0]), (right, layer_norm(rows), names[1])):
    axes.imshow(table, cmap="RdBu", vmin=-2, vmax=2)
    axes.set(title=name, xlabel=labels[0], ylabel=labels[1])
plt.show()

# %% [markdown]
# **그림 읽기.** 왼쪽 그림에서는 지름길이 없으면 30층을 지나는 동안 기울기가 사라집니다(기울기 소실, vanishing
# gradient). 나머지 두 그림은 같은 표를 두 가지로 정규화한 것입니다. 가운데 표는 열마다, 오른쪽 표는 행마다 평균이
# 0입니다.
#
# ## 피드 포워드 신경망
#
# 어텐션은 토큰을 섞습니다. 출력은 밸류의 가중 평균입니다. 섞인 정보를 토큰마다 가공하는 일은 ReLU를 사이에 둔
# 밀집층(dense layer) 두 개가 합니다. 자리마다 똑같이 적용하므로 논문에서는 *포지션 와이즈*(position-wise)라고
# 부릅니다.
#
# $$\text{FFN}(x) = \max(0,\ x W_1 + b_1)\, W_2 + b_2$$
#
# 안쪽 층은 넓습니다. $d_{model} = 512$일 때 $d_{ff} = 2048$입니다.
#
# ## 인코더 층
#
# 이제 모두 합쳐 봅시다. 논문의 순서는 *사후 정규화*(post-norm), 곧 더한 다음에 정규화하는 것입니다.
#
# $$y = \text{LayerNorm}(x + \text{Attention}(x)) \qquad z = \text{LayerNorm}(y + \text{FFN}(y))$$

# %%
d_model, num_heads, d_ff, length = 16, 4, 64, 5
layer = kt.EncoderLayer(num_heads, d_ff)
x = random.normal(size=(1, length, d_model)).astype("float32")
outputs = layer(x)

attention, network = layer.self_attention, layer.feed_forward
w1, b1, w2, b2 = (weight.numpy() for weight in network.weights)
y = layer_norm(x + attention(x, x).numpy())
z = layer_norm(y + np.maximum(0, y @ w1 + b1) @ w2 + b2)
np.testing.assert_allclose(outputs, z, atol=1e-4)
print({weight.path.split("/", 1)[1]: tuple(weight.shape) for weight in layer.weights})
assert w1.shape == (d_model, d_ff) and w2.shape == (d_ff, d_model)

# %% [markdown]
# 출력은 입력과 모양이 같습니다. 그래서 층을 쌓을 수 있습니다. 논문은 여섯 층을 쌓습니다. `normalize_first=True`로 하면
# *사전 정규화*(pre-norm), 곧 $x + \text{Sublayer}(\text{LayerNorm}(x))$가 됩니다. 워밍업(12a장) 없이도 학습되며, GPT-2
# 이후의 언어 모델은 대부분 이것을 씁니다.
#
# 학습할 때는 *드롭아웃*(dropout)도 있습니다. 드롭아웃은 벡터의 성분을 정해진 확률로, 논문에서는 0.1의 확률로 골라
# 0으로 바꾸고 나머지를 그만큼 키웁니다. 자리는 두 곳입니다(5.4절). 하나는 서브층의 출력으로, 입력에 더하기 전입니다.
# 곧
# $\text{LayerNorm}(x + \text{Dropout}(\text{Sublayer}(x)))$입니다. 다른 하나는 임베딩에 위치를 더한 값입니다. 학습이
# 끝나면 드롭아웃은 아무 일도 하지 않으므로 위의 계산에는 나오지 않았습니다.
#
# ## 디코더 층
#
# 디코더 층에는 서브층이 세 개 있습니다. 첫째는 지금까지 쓴 것을 보는, *마스크가 있는* 셀프 어텐션입니다. 둘째는
# **교차 어텐션**입니다. 논문에서는 인코더-디코더 어텐션이라고 합니다. 쿼리는 디코더에서, 키와 밸류는 인코더의
# 출력에서 옵니다. 그래서 쓰는 단어마다 원문 전체를 봅니다. 셋째는 피드 포워드 신경망입니다.

# %%
decoder = kt.DecoderLayer(num_heads, d_ff)
source = random.normal(size=(1, 7, d_model)).astype("float32")
memory = layer(source)
target = random.normal(size=(1, length, d_model)).astype("float32")
written, (self_scores, cross_scores) = decoder(target, memory, return_attention_scores=True)
print("출력", tuple(written.shape))
print("셀프 어텐션: 쿼리 x 키", tuple(self_scores.shape[2:]))
print("교차 어텐션: 쿼리 x 키", tuple(cross_scores.shape[2:]))
assert written.shape == target.shape
assert cross_scores.shape == (1, num_heads, length, 7)  # 쓴 단어 5개가 읽은 단어 7개를 봅니다
assert (self_scores.numpy()[0, :, 0, 1:] == 0).all()  # 첫 단어는 미래를 보지 못합니다

# %% [markdown]
# ## 논문의 모델 크기
#
# | | base |
# | --- | --- |
# | $d_{model}$ | 512 |
# | 층 | 6 + 6 |
# | 헤드 | 64차원 헤드 8개 |
# | $d_{ff}$ | 2,048 |
#
# 파라미터는 어디에 많을까요? 인코더 층 하나에서 파라미터의 3분의 2가 피드 포워드 신경망에 있습니다.

# %%
base = kt.EncoderLayer(8, 2048)
base.build((None, None, 512))
counts = {"attention": base.self_attention.count_params(), "feed-forward": base.feed_forward.count_params()}
print({name: f"{count:,}" for name, count in counts.items()}, f"{base.count_params():,}")
assert counts["attention"] == 4 * (512 * 512 + 512)
assert counts["feed-forward"] == 512 * 2048 + 2048 + 2048 * 512 + 512

# %% [markdown]
# ## 연습 문제
#
# ### 5분 문제
#
# 1. 위에서 `base`의 인코더 층에 있는 파라미터를 출력했습니다. 마지막 수가 전체이고, 어텐션과 피드 포워드 신경망의
#    합보다 큽니다. 얼마나 클까요? 무엇을 더 세었을까요?
# 2. 디코더 층에는 몇 개일까요? 먼저 계산하고 라이브러리로 확인해 봅시다.
# 3. 논문의 표 3에 따르면 `base`의 파라미터는 6,500만 개입니다. 6 + 6층이고, 토큰 37,000개의 행렬 하나로 원문과 번역문을
#    임베딩하고 출력에도 쓰입니다. 세어 보면 몇 개일까요?

# %% tags=["hide-cell"]
# 1. 층 정규화가 두 개 더 있습니다. γ와 β가 512개씩이므로 모두 2,048개입니다.
norm = 2 * 512
encoder_layer = counts["attention"] + counts["feed-forward"] + 2 * norm
# 2. 디코더 층에는 어텐션 하나와 정규화 하나가 더 있습니다. 모두 4,204,032개입니다.
decoder_layer = 2 * counts["attention"] + counts["feed-forward"] + 3 * norm
other = kt.DecoderLayer(8, 2048)
other.build((None, None, 512), (None, None, 512))
assert base.count_params() == encoder_layer and other.count_params() == decoder_layer
print(f"{encoder_layer:,} {decoder_layer:,}")
# 3. 아래의 설명을 봅시다.
embedding = 37_000 * 512  # 두 임베딩과 출력층이 함께 쓰는 행렬
total = 6 * encoder_layer + 6 * decoder_layer + embedding
print(f"{total:,}")
assert 62e6 < total < 65e6
small = kt.Transformer(30, num_layers=2, d_model=512, num_heads=8, d_ff=2048)
assert small.count_params() == 2 * encoder_layer + 2 * decoder_layer + 30 * 512

# %% [markdown]
# 세어 보면 6,500만이 아니라 6,300만 개입니다. 그 까닭은 16장에서 찾습니다. 두 가지를 기억해 둡시다. 파라미터의 3분의
# 1 가까이가 임베딩 행렬 하나에 있습니다. 그리고 문장의 단어 수나 헤드의 수는 파라미터 수를 바꾸지 않습니다. 모든
# 자리에서 같은 행렬을 쓰고, 헤드는 그 열을 나누어 쓸 뿐이기 때문입니다.

# %% [markdown]
# ### 한 시간 문제
#
# `encoder_layer(x, weights, num_heads)`를 작성합니다. 문장 하나 `(length, d_model)`를 받는 사후 정규화 층 전체입니다.
# ReLU와 편향을 쓰고 드롭아웃은 쓰지 않습니다. `weights`는 딕셔너리입니다. 키는 `self_attention/query/kernel`,
# `self_attention/query/bias`이고, `key`, `value`, `attention_output`도 같습니다. 그리고 `feed_forward/inner/kernel`과
# `bias`, `feed_forward/outer/kernel`과 `bias`, `self_attention/norm/gamma`, `self_attention/norm/beta`,
# `feed_forward/norm/gamma`, `feed_forward/norm/beta`가 있습니다. 정규화는 분산에 $10^{-6}$을 더합니다.
#
# `answer.py`에 NumPy만으로 작성합니다. `python course/check.py 9 answer.py`를 실행하면 맞는 성질과 틀린 성질을 알려
# 줍니다. 풀이는 공개하지 않습니다.
#
# ### 프로젝트
#
# 모델은 얼마나 깊을 수 있을까요? 16장의 작은 번역기를 2, 6, 12, 24층으로, 사후 정규화와 사전 정규화로, 워밍업이 있을
# 때와 없을 때로 학습합니다. 200스텝 뒤의 손실과 첫 스텝에서 층마다의 기울기 크기를 그립니다.

# %% [markdown]
# ## 더 읽을거리
#
# - Vaswani et al., 2017, ["Attention Is All You Need"](https://arxiv.org/abs/1706.03762), 3.1절과 3.3절, 그림 1
# - Ba et al., 2016, ["Layer Normalization"](https://arxiv.org/abs/1607.06450)
# - Xiong et al., 2020, ["On Layer Normalization in the Transformer Architecture"](https://arxiv.org/abs/2002.04745):
#   사후 정규화와 사전 정규화
# - 다음 장: **10. 한 문장을 따라 한 걸음씩**
