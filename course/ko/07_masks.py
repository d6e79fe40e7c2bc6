# %% [markdown]
# # 7. 마스크
#
# 이 장을 마치면 트랜스포머의 두 가지 마스크(mask)를 알게 됩니다. 하나는 배치의 패딩을 가리고, 다른 하나는 디코더가
# 미래를 보지 못하게 합니다. $-\infty$가 어디에 들어가는지, 그리고 마스크가 제 일을 하는지 확인하는 방법도 알게 됩니다.
#
# **먼저 읽을 것:** 4장과 5장(손으로 계산하는 셀프 어텐션, 스케일드 닷 프로덕트 어텐션).

# %% [markdown]
# ## 오른쪽으로 한 칸 밉니다
#
# 디코더는 단어를 하나씩 씁니다. `<SOS>`(start of sequence)라는 시작 표시에서 출발하고, 쓴 단어가 다음 입력이 됩니다. 다
# 쓰면 끝 표시 `<EOS>`(end of sequence)를 씁니다. 학습할 때는 정답 문장을 이미 알고 있으므로 한꺼번에 보여 줄 수
# 있습니다. 입력은 정답 문장을 *오른쪽으로 한 칸 민*(shifted right) 것입니다. 모델은 자리마다 다음 단어를 맞혀야 합니다.
# 모델이 틀린 단어를 예측한 자리에서도 다음 입력은 정답 단어입니다. 이런 학습 방법을 *교사 강요*(teacher forcing)라고
# 합니다.
#
# | 입력 | `<SOS>` | I | am | a | student |
# | --- | --- | --- | --- | --- | --- |
# | **정답** | I | am | a | student | `<EOS>` |
#
# 여기에 문제가 하나 있습니다. 셀프 어텐션에서는 모든 자리가 다른 모든 자리를 볼 수 있습니다. "I"의 자리에서 한 칸
# 오른쪽을 보면 정답인 "am"이 있습니다. 그러면 모델은 베끼는 법만 배우고, 정작 번역할 때는 오른쪽에 베낄 정답이 없으므로
# 문장을 만들지 못합니다. 그래서 각 자리는 자기 자신과 그 앞만 보아야 합니다. 이렇게 하는 마스크를 *룩어헤드
# 마스크*(look-ahead mask) 또는 인과적 마스크(causal mask)라고 합니다.

# %%
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

import keras_transformer as kt

keras.utils.set_random_seed(7)
random = np.random.default_rng(7)

# %% [markdown]
# ## −∞는 어디에 들어갈까요?
#
# 토큰 다섯 개의 어텐션 스코어 표입니다. 행은 묻는 토큰, 열은 읽히는 토큰입니다. "I"의 행에서는 "am"과 "a"와 "student"의
# 스코어가 쓰이면 안 됩니다.
#
# 스코어를 0으로 바꾸는 것은 소용이 없습니다. $e^0 = 1$이므로 스코어가 0이어도 어텐션 가중치는 0이 아닙니다. 가중치
# 자체가 0이 되어야 하고, 나머지 가중치의 합은 여전히 1이어야 합니다. 그래서 마스크는 소프트맥스 *앞에서* 일합니다.
# 스코어를 $-\infty$로 바꾸면 $e^{-\infty} = 0$입니다. 쿼리와 키와 밸류, 그리고 위치(8장)는 그대로입니다.

# %%
tokens = ["<SOS>", "I", "am", "a", "student"]
scores = np.array(
    [
        [7, 2, 2, 2, 2],
        [1, 7, 3, 2, 1],
        [1, 4, 8, 4, 3],
        [1, 2, 3, 6, 2],
        [1, 5, 4, 1, 9],
    ],
    dtype="float32",
)


def softmax(scores):
    """스코어의 행마다 합이 1인 어텐션 가중치로 바꿉니다."""
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


may_see = np.tril(np.ones((5, 5), dtype=bool))  # 대각선과 그 아래가 True
masked = np.where(may_see, scores, -np.inf)
weights = softmax(masked)
print(masked)
print(weights.round(3))

assert np.isneginf(masked[np.triu_indices(5, 1)]).all()  # 대각선 위
assert (weights[~may_see] == 0).all()
np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-6)
np.testing.assert_array_equal(weights[0], [1, 0, 0, 0, 0])  # 첫 토큰은 자기만 봅니다

wrong = softmax(np.where(may_see, scores, 0))  # −∞ 대신 0
print("0을 넣었을 때 <SOS>의 행:", wrong[0].round(4))
assert (wrong[0, 1:] > 0).all()

# %% [markdown]
# 같은 표를 그림으로 봅시다. 열린 칸에는 스코어가, 마스크가 가린 칸에는 −∞가 있습니다. 삼각형에 주목합시다. 첫째 행에는
# 열린 칸이 하나, 마지막 행에는 다섯 개입니다.

# %%
title = "룩어헤드 마스크"
mask = kt.masks.look_ahead_mask(5)
np.testing.assert_array_equal(mask[0, 0], may_see)
axis_names = {"xlabel": "키: 보이는 토큰", "ylabel": "쿼리: 보는 토큰"}
kt.plots.masks({title: mask}, tokens, scores=scores, **axis_names)

# %% [markdown]
# ## 패딩 마스크
#
# 배치 안의 문장은 길이가 서로 다릅니다. 짧은 문장은 아무 뜻도 없는 토큰, 곧 패딩(padding)으로 채웁니다. 여기서는 ID 0이
# 패딩입니다. 어떤 토큰도 패딩을 보면 안 됩니다. 이 마스크는 표의 모든 행에서 똑같으므로 *열*을 통째로 가립니다.
# **키**에 붙는 마스크입니다.
#
# | 문장 | 토큰 ID |
# | --- | --- |
# | I am a student | 5 6 7 8 |
# | I am | 5 6 0 0 |

# %%
ids = np.array([[5, 6, 7, 8], [5, 6, 0, 0]])
padding = kt.masks.padding_mask(ids)
print("모양 (배치, 헤드, 쿼리, 키):", tuple(padding.shape))
print(padding.numpy()[:, 0, 0])

both = kt.masks.combine(padding, kt.masks.look_ahead_mask(4))  # 두 마스크가 모두 True인 칸만 열립니다
names = "패딩 마스크, 둘째 문장", "두 마스크를 합치면"
tables = {names[0]: np.broadcast_to(padding[1], (1, 4, 4)), names[1]: both[1]}
kt.plots.masks(tables, ["I", "am", "0", "0"], **axis_names)

# %% [markdown]
# ![룩어헤드 마스크와 패딩 토큰 하나가 있는 스코어 표, 그리고 한 행의 가중치](../../docs/images/motion_masks.ko.svg)
#
# 사이트에서는 두 마스크를 켜고 끄고, 행을 고를 수 있습니다. 가린 칸은 −∞이고, 그 행의 소프트맥스는 이것을 0으로
# 만듭니다.

# %% [markdown]
# 어느 마스크가 어디에 쓰일까요? *교차 어텐션*(cross-attention)은 2장에서처럼 디코더가 원문에 묻는 어텐션입니다(9장).
#
# | 어텐션 | 패딩 마스크 | 룩어헤드 마스크 |
# | --- | --- | --- |
# | 인코더의 셀프 어텐션 | 원문의 것 | 없음 |
# | 디코더의 셀프 어텐션 | 번역문의 것: 패딩이 왼쪽에 있을 때 | 있음 |
# | 디코더의 교차 어텐션 | 원문의 것 | 없음: 원문은 전부 보아도 됩니다 |
#
# 디코더의 셀프 어텐션에는 언제 두 마스크가 모두 필요할까요? 여기처럼 패딩이 오른쪽에 있으면 룩어헤드 마스크만으로
# 충분합니다. 패딩은 모두 마지막 단어 뒤에 있으므로 어떤 단어도 패딩을 보지 못합니다. 패딩 자리의 출력은 쓸모가 없지만
# 손실(12a장)에 들어가지 않습니다. 패딩이 단어보다 *앞에* 있으면 패딩 마스크도 필요합니다. 모델이 이어 쓸 글, 곧
# 프롬프트(14장)는 왼쪽에 패딩을 채우기도 합니다. 여러 문장을 이어 붙여 한 행에 담으면, 서로 다른 문장끼리 보지 못하게
# 하는 마스크도 필요합니다.
#
# ## 마스크는 이렇게 검사합니다
#
# 마스크가 틀려도 모양이 맞는 값이 나오므로 잘못이 눈에 띄지 않습니다. 이런 잘못은 토큰을 바꾸어 보면 찾을 수 있습니다.
# *가려진 토큰을 바꾸면 아무것도 변하지 않아야 하고, 보이는 토큰을 바꾸면 출력이 변해야 합니다.* 라이브러리의 인코더
# 층과 디코더 층으로 해 봅시다. 두 층은 9장에서 만듭니다. 지금은 둘 다 셀프 어텐션을 하고, 디코더 층에만 룩어헤드
# 마스크가 있다는 것만 알면 됩니다. 어떤 출력도 뒤의 토큰에 따라 달라지지 않으면 그 모델은 인과적(causal)입니다.

# %%
x = random.normal(size=(1, 5, 16)).astype("float32")
changed = x.copy()
changed[0, 3] += 1.0  # 넷째 토큰을 바꿉니다

encoder = kt.EncoderLayer(num_heads=2, d_ff=32)
decoder = kt.DecoderLayer(num_heads=2, d_ff=32)
for name, layer in (("인코더", encoder), ("디코더", decoder)):
    moved = np.abs(layer(x) - layer(changed)).max(axis=(0, 2))
    print(name, moved.round(4))
encoder_moved = np.abs(encoder(x) - encoder(changed)).max(axis=(0, 2))
decoder_moved = np.abs(decoder(x) - decoder(changed)).max(axis=(0, 2))
assert (encoder_moved > 1e-4).all()  # 모든 자리가 변화를 봅니다
assert (decoder_moved[:3] < 1e-6).all() and (decoder_moved[3:] > 1e-4).all()  # 그 앞은 보지 못합니다

real = np.array([[True, True, True, False, False]])
hidden = np.abs(encoder(x, padding_mask=real) - encoder(changed, padding_mask=real)).max(axis=(0, 2))
assert (hidden[:3] < 1e-6).all()  # 패딩은 진짜 토큰에 닿지 않습니다

# %% [markdown]
# ## 연습 문제
#
# ### 5분 문제
#
# 너무 먼 것을 가리는 마스크도 있습니다. 논문 4절의 "제한된 셀프 어텐션(restricted self-attention)"입니다. 토큰마다
# 2칸보다 가까운 토큰만 볼 수 있고, 디코더처럼 미래는 보지 못한다고 합시다.
#
# 1. 토큰이 다섯 개일 때 표에서 열린 칸은 몇 개일까요?
# 2. `kt.masks`의 함수로 이 마스크를 만들고, 위의 스코어 표에서 마지막 행의 어텐션 분포를 구해 봅시다.

# %% tags=["hide-cell"]
near = kt.masks.combine(kt.masks.look_ahead_mask(5), kt.masks.local_mask(5, window=2))[0, 0].numpy()
assert near.sum() == 9  # 1. 대각선 5칸과 바로 아래 4칸
# 2. 마지막 행에 남는 스코어는 1과 9입니다. 차이가 8이므로 가중치는 e^8배 차이 납니다.
last = softmax(np.where(near, scores, -np.inf))[-1]
np.testing.assert_allclose(last, [0, 0, 0, 1 / (1 + np.exp(8)), 1 / (1 + np.exp(-8))], rtol=1e-5)
print(near.astype(int), last.round(4), sep="\n")

# %% [markdown]
# ### 한 시간 문제
#
# 자리를 아끼려고 대화 여러 개를 한 행에 담습니다. `packed_mask(numbers, prompts)`를 작성합니다. `numbers`는 모양이
# `(batch, length)`이고, 토큰이 속한 대화의 번호입니다. 패딩은 0입니다. `prompts`는 프롬프트의 토큰에서 True입니다.
# 쿼리가 키를 보아도 되는 곳이 True인 `bool` 표 `(batch, length, length)`를 돌려줍니다. 토큰은 자기 대화에서 자기
# 자신까지 봅니다. 프롬프트의 토큰끼리는 양쪽을 모두 봅니다.
#
# `answer.py`에 NumPy만으로 작성합니다. `python course/check.py 7 answer.py`를 실행하면 맞는 성질과 틀린 성질을 알려
# 줍니다. 풀이는 공개하지 않습니다.
#
# ### 프로젝트
#
# 코드를 읽지 않고 어떤 층이 어떤 마스크를 쓰는지 알아내는 프로그램을 만듭니다. 층을 호출하는 것만 허용됩니다. 토큰을
# 하나씩 바꾸고 어느 출력이 변하는지 봅니다. 마스크를 받는 이 라이브러리의 모든 층에 시험하고, 알아낸 표를 그립니다.

# %% [markdown]
# ## 더 읽을거리
#
# - Vaswani et al., 2017, ["Attention Is All You Need"](https://arxiv.org/abs/1706.03762), 3.2.3절: 어텐션의 세 가지
#   쓰임과 $-\infty$
# - Keras가 마스크를 전달하는 방법: [Keras 안내서](https://keras.io/guides/understanding_masking_and_padding/). 이
#   라이브러리의 방법: 문서의 "Masks"
# - 다음 장: **8. 위치**
