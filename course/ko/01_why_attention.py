# %% [markdown]
# # 1. 왜 어텐션인가
#
# 이 장을 마치면 어텐션(attention)이 어떤 문제를 푸는지 알게 됩니다. 순환 신경망이 문장의 앞부분을 잊는 것을 보고,
# 얼마나 잊는지 측정하고, 가중 평균으로 고칩니다. 트랜스포머가 왜 순환 신경망을 아예 버렸는지도 알게 됩니다.
#
# **먼저 알아야 할 것:** Python과 NumPy, 그리고 벡터와 행렬의 곱.

# %% [markdown]
# ![트랜스포머. 이 장의 부분에 색이 있습니다](../../docs/images/transformer_1.ko.svg)
#
# 이 강의에서 만들 모델 전체이고, 9장과 10장에서 완성합니다. 상자 안의 말은 아직 몰라도 됩니다. 색칠한 부분이 이 장의
# 주제인 어텐션입니다. 번역문을 쓰는 디코더가 이것으로 원문을 봅니다.

# %% [markdown]
# ## 순환 신경망 번역기는 단어를 차례대로 읽습니다
#
# "저는 학생입니다."라는 문장을 봅시다. "저는", "학생", "입니다" 세 조각으로 나눕니다. 영어로는 *I am a student*입니다.
#
# 2017년 이전의 신경망 번역기는 대부분 **순환 신경망**(recurrent neural network, RNN)이었습니다. 순환 신경망은 단어를
# 하나씩 읽습니다. 지금까지 읽은 내용을 **상태**(state)라는 벡터 하나에 담습니다. 새 상태는 바로 앞의 상태와 다음
# 단어로 만듭니다.
#
# $$h_t = \tanh(x_t W + h_{t-1} U)$$
#
# 단어는 Python처럼 0번부터 셉니다. $x_t$는 $t$번 단어의 벡터이고, $h_t$는 그 단어까지 읽은 상태입니다. 첫 단어를 읽은
# 상태가 $h_0$이고, 그 앞의 상태는 0입니다. $W$와 $U$는 모델이 학습하는 행렬입니다. $\tanh$는 벡터의 성분을 −1과 1
# 사이의 값으로 바꿉니다. NumPy로 직접 만들어 봅시다. 단어는 무작위 벡터이고 행렬도 난수입니다. 우리가 확인하려는
# 성질을 보기에는 이것으로 충분합니다.

# %%
import matplotlib.pyplot as plt
import numpy as np

from keras_transformer.fonts import font_families

random = np.random.default_rng(1)

words, width, vocab_size = ["저는", "학생", "입니다"], 32, 20
embeddings = random.normal(size=(vocab_size, width))  # 단어 20개에 벡터 하나씩
w = random.normal(size=(width, width)) / np.sqrt(width)
u = random.normal(size=(width, width)) / np.sqrt(width)


def read(sentences):
    """ID로 쓴 문장 `(batch, length)`를 읽고 모든 상태 `(batch, length, width)`를 돌려줍니다."""
    state, states = np.zeros((len(sentences), width)), []
    for t in range(sentences.shape[1]):  # 한 단계는 바로 앞 단계를 기다립니다
        state = np.tanh(embeddings[sentences[:, t]] @ w + state @ u)
        states.append(state)
    return np.stack(states, axis=1)


h = read(np.array([[0, 1, 2]]))[0]
for i, word in enumerate(words):
    print(f"h{i}, {word} 다음: {h[i, :4].round(2)} ... ({width}차원)")

# %% [markdown]
# 고전적인 번역기(Sutskever et al., 2014)는 이런 신경망 두 개로 되어 있습니다. **인코더**(encoder)는 원문을 읽고 마지막
# 상태, 여기서는 $h_2$만 남깁니다. **디코더**(decoder)는 이 상태 하나만 보고 번역문 전체를 씁니다.

# %% [markdown]
# ## 순환 신경망의 세 가지 문제
#
# 1. **기다립니다.** $h_2$를 구하려면 $h_1$이 있어야 하고, $h_1$을 구하려면 $h_0$이 있어야 합니다. 그래픽 카드(GPU)는
#    수천 가지 계산을 한꺼번에 할 수 있는데, 위의 반복문은 한 번에 하나씩만 맡깁니다. (11장에서 시간을 잽니다.)
# 2. **좁습니다.** 단어가 3개든 50개든 똑같은 32차원 벡터 하나에 담아야 합니다.
# 3. **잊습니다.** 단계마다 상태에 새 단어가 섞이므로 처음에 읽은 단어는 점점 흐려집니다.
#
# 셋째 문제는 측정할 수 있습니다. 무작위 단어로 문장을 만들고 묻습니다. 첫 단어는 무엇이었을까요? 마지막 상태에서 첫
# 단어를 가장 잘 읽어 내는 행렬 하나를 구합니다(`np.linalg.lstsq`가 구해 줍니다). 이 행렬은 단어 20개에 값을 하나씩
# 매기고, 값이 가장 큰 단어가 답입니다. 문장의 절반으로 맞는 단어는 1, 나머지는 0이 되도록 행렬을 구하고, 다른
# 절반으로 시험합니다. (1로 된 열이 있으면 상수도 더할 수 있습니다.) 가장 좋은 행렬로도 첫 단어를 맞히지 못한다면, 첫
# 단어의 정보가 꺼내 쓰기 쉬운 형태로는 상태에 남아 있지 않다는 뜻입니다.


# %%
def accuracy_of_first_word(vectors, sentences):
    """절반으로 행렬을 구하고, 나머지 절반에서 첫 단어를 맞힌 비율을 돌려줍니다."""
    features = np.concatenate([vectors, np.ones((len(vectors), 1))], axis=1)
    wanted = np.eye(vocab_size)[sentences[:, 0]]
    half = len(vectors) // 2
    readout = np.linalg.lstsq(features[:half], wanted[:half], rcond=None)[0]
    guesses = (features[half:] @ readout).argmax(axis=1)
    return np.mean(guesses == sentences[half:, 0])


def draw_sentences(length):
    """무작위 단어로 된 문장 4,000개를 돌려줍니다."""
    return random.integers(vocab_size, size=(4000, length))


lengths = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32]
with_last_state = []
for length in lengths:
    sentences = draw_sentences(length)
    with_last_state.append(accuracy_of_first_word(read(sentences)[:, -1], sentences))
    print(f"단어 {length:2}개: 문장의 {with_last_state[-1]:.0%}에서 첫 단어를 압니다")
assert with_last_state[0] > 0.99 and with_last_state[-1] < 0.15  # 무작위로 추측하면 5%가 맞습니다

# %% [markdown]
# ## 해결 방법: 상태를 모두 남겨 두고 되돌아봅니다
#
# 상태는 모두 이미 계산해 두었습니다! $h_0$에는 첫 단어의 정보가 온전히 들어 있습니다. 그러니 상태를 모두 남겨 둡시다.
# 디코더는 단어를 쓸 때마다 모든 상태에 가중치를 곱해 더합니다. 쓸모 있는 상태일수록 가중치가 큽니다. 이렇게 가중치를
# 정하는 일이 **어텐션**입니다.
#
# "I"를 쓰려면 "저는"이 필요합니다. 그래서 $h_0$의 가중치는 0.8, $h_1$과 $h_2$의 가중치는 각각 0.1로 합니다.

# %%
shares = np.array([0.8, 0.1, 0.1])
mixture = 0.8 * h[0] + 0.1 * h[1] + 0.1 * h[2]
np.testing.assert_allclose(shares @ h, mixture)  # 행렬 곱 하나와 같습니다
distances = np.linalg.norm(mixture - h, axis=1)
assert distances[0] < distances[1:].min()
print("가중합과 h0, h1, h2의 거리:", distances.round(2))

# %% [markdown]
# 도움이 될까요? 마지막 상태 대신 이 가중합으로 다시 측정해 봅시다. $h_0$의 가중치가 0.8이고, 나머지를 모두 합쳐
# 0.2입니다.


# %%
def attend_to_first(states, share=0.8):
    """문장마다 상태의 가중합을 구합니다. 첫 상태의 가중치가 `share`이고, 나머지는 남은 가중치를 똑같이 나눕니다."""
    length = states.shape[1]
    if length == 1:
        return states[:, 0]
    shares = np.full(length, (1 - share) / (length - 1))
    shares[0] = share
    return shares @ states


with_attention = []
for length in lengths:
    sentences = draw_sentences(length)
    with_attention.append(accuracy_of_first_word(attend_to_first(read(sentences)), sentences))
assert min(with_attention) > 0.95

texts = {
    "state": "마지막 상태",
    "attention": "어텐션, h0의 가중치 0.8",
    "guess": "무작위 추측",
    "length": "문장의 길이, 단어 수",
    "accuracy": "첫 단어를 맞힌 문장의 비율",
    "share": "가중치",
    "left": "상태 하나는 잊고, 어텐션은 잊지 않습니다",
    "right": '"I"를 쓸 때',
}

# %% tags=["hide-input"]
plt.rcParams["font.family"] = font_families(*texts.values(), *words)
figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 3.8), layout="constrained", width_ratios=[2.2, 1])
left.plot(lengths, with_attention, "o-", color="#3a6ea5", label=texts["attention"])
left.plot(lengths, with_last_state, "o-", color="#d1603d", label=texts["state"])
left.axhline(1 / vocab_size, color="black", linewidth=0.8, linestyle=":", label=texts["guess"])
left.set(title=texts["left"], xlabel=texts["length"], ylabel=texts["accuracy"], ylim=(0, 1.05))
left.legend(loc="center right")
bars = right.bar([f"h{i}\n{word}" for i, word in enumerate(words)], shares, color="#3a6ea5")
right.bar_label(bars)
right.set(title=texts["right"], ylabel=texts["share"], ylim=(0, 1))
plt.show()

# %% [markdown]
# **그림 읽기.** 주황 선은 떨어집니다. 문장이 단어 여섯 개만 되어도 마지막 상태로 맞힌 비율은 무작위 추측(점선)과
# 다르지 않습니다. 파란 선은 문장이 아무리 길어도 꼭대기에 머뭅니다. 두 선은 같은 신경망의 상태를 씁니다. 다른 점은
# 어텐션이 되돌아볼 수 있다는 것뿐입니다. 학습한 신경망은 단어를 더 오래 기억합니다. 그러나 그런 번역기의 품질도
# 문장이 길어지면 떨어졌습니다(Bahdanau et al., 2015, 그림 2).

# %% [markdown]
# ## 가중치는 어떻게 정할까요?
#
# 0.8은 우리가 정했습니다. 모델은 단어를 쓸 때마다 이 가중치를 새로 계산해야 합니다. 먼저 상태마다 **스코어**(score)를
# 매깁니다. 스코어는 어떤 실수든 될 수 있고, 쓸모 있는 상태일수록 큽니다. **소프트맥스**(softmax)라는 함수가 스코어를
# 가중치로 바꿉니다. 스코어가 $z_1, \ldots, z_n$이면 $i$번째 가중치는 $e^{z_i} / (e^{z_1} + \dots + e^{z_n})$입니다.
# 가중치는 모두 양수이고 합이 1입니다. 두 가중치가 몇 배 차이 나는지는 스코어의 차이로 정해집니다. 스코어가
# $\ln 8 \approx 2.08$만큼 크면 가중치는 8배가 됩니다.

# %%
scores = np.array([np.log(8), 0, 0])
powers = np.exp(scores)  # 8, 1, 1
computed = powers / powers.sum()
np.testing.assert_allclose(computed, shares)
print("가중치:", computed.round(2))

# %% [markdown]
# ## 어텐션이 순환 신경망을 대신합니다
#
# 어텐션은 순환 신경망에 덧붙인 것으로 시작했습니다(바다나우 어텐션, Bahdanau et al., 2015). 둘째와 셋째 문제는
# 이것으로 풀렸습니다. 첫째 문제는 남았습니다. 상태는 여전히 하나씩 차례로 계산했습니다.
#
# 2017년의 "Attention Is All You Need"는 한 걸음 더 나아갔습니다. 어텐션이 어떤 단어든 어디서나 가져올 수 있다면,
# 단어를 실어 나르던 순환 신경망은 필요 없습니다. **트랜스포머**(Transformer)에는 순환층이 없습니다. 단어에서 단어로
# 정보를 옮기는 것은 어텐션뿐입니다. 이미 알고 있는 문장의 모든 단어를 동시에 계산합니다. (번역문을 쓸 때는 여전히 한
# 단어씩 씁니다. 10장에서 봅니다.)
#
# | | 순환 신경망, 상태 하나 | 순환 신경망과 어텐션 | 트랜스포머 |
# | --- | --- | --- | --- |
# | 단어 $n$개를 읽거나 학습할 때 차례로 기다리는 단계 | $n$ | $n$ | 층마다 1 |
# | 디코더가 보는 원문 | 벡터 하나 | 모든 상태 | 모든 상태 |
# | 첫 단어에서 마지막 단어까지 | $n$단계 | 인코더에서 $n$단계 | 1단계 |
# | 다루는 장 | 이 장 | 2장 | 3장부터 10장 |

# %% [markdown]
# ## 연습 문제
#
# ### 5분 문제
#
# 단어가 50개인 문장이 있습니다.
#
# 1. 모든 스코어가 같습니다. 단어 하나의 가중치는 얼마일까요?
# 2. 한 단어의 스코어가 $z$이고 나머지 49개의 스코어는 0입니다. 이 단어가 0.8을 받으려면 $z$는 얼마여야 할까요? (단어가
#    3개일 때는 $\ln 8$이었습니다.)
#
# 종이에 풀어 봅시다. 가중치는 $e^z / (e^z + 49)$입니다.

# %% tags=["hide-cell"]
# 1. 스코어가 모두 같으면 가중치도 모두 같으므로 1/50, 곧 0.02입니다.
equal = np.exp(np.zeros(50)) / np.exp(np.zeros(50)).sum()
np.testing.assert_allclose(equal, 0.02)

# 2. e^z / (e^z + 49) = 0.8이면 e^z = 4 * 49 = 196이므로 z = ln 196입니다.
z = np.log(0.8 / 0.2 * 49)
np.testing.assert_allclose(np.exp(z) / (np.exp(z) + 49), 0.8)
np.testing.assert_allclose(z, 5.28, atol=0.005)
print(
    f"스코어가 같으면 {equal[0]}, 필요한 스코어는 z = {z:.2f}. 단어 수가 약 17배가 되어도 3.2만 더하면 됩니다."
)

# %% [markdown]
# ### 한 시간 문제
#
# `read_both_ways(x, forward, backward)`를 작성합니다. `x`는 한 문장의 단어 벡터로, 모양이 `(length, width)`입니다.
# `forward`와 `backward`는 각각 행렬 $W$와 $U$의 쌍입니다. 한 신경망은 `forward`로 왼쪽부터 읽고, 다른 신경망은
# `backward`로 오른쪽부터 읽습니다. 둘 다 상태 0에서 시작합니다. 답의 $t$번 행에는 $t$번 단어를 읽은 두 상태를 나란히
# 놓습니다. 왼쪽부터 읽은 상태가 앞에 옵니다.
#
# `answer.py`에 NumPy만으로 작성합니다. `python course/check.py 1 answer.py`를 실행하면 맞는 성질과 틀린 성질을 알려
# 줍니다. 풀이는 공개하지 않습니다.
#
# ### 프로젝트
#
# `keras.layers.SimpleRNN`과 `keras.layers.LSTM`(32차원)이 문장의 첫 단어를 맞히도록 학습합니다. 단어 4개부터 64개까지
# 이 장의 곡선을 두 층에 대해 그립니다. 결과를 보기 전에 예상을 적어 둡니다. 차원을 늘리거나 더 오래 학습하면 곡선이
# 떨어지는 지점이 옮겨 가는지도 알아봅니다.

# %% [markdown]
# ## 더 읽을거리
#
# - Vaswani et al., 2017, ["Attention Is All You Need"](https://arxiv.org/abs/1706.03762), 1절
# - Sutskever et al., 2014, ["Sequence to Sequence Learning with Neural Networks"](https://arxiv.org/abs/1409.3215):
#   문장 전체를 상태 하나에 담는 방식
# - Bahdanau et al., 2015, ["Neural Machine Translation by Jointly Learning to Align and
#   Translate"](https://arxiv.org/abs/1409.0473): 최초의 어텐션. 길이에 따라 품질이 떨어지는 그림이 있습니다
# - 다음 장: **2. 루옹의 닷 프로덕트 어텐션**
