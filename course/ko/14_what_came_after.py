# %% [markdown]
# # 14. 그 뒤에 나온 것들: BERT, GPT, 비전
#
# 이 장을 마치면 유명한 세 모델이 어떻게 한 가지 층에서 나왔는지 말할 수 있습니다. BERT는 읽고, GPT는 쓰고, 비전
# 트랜스포머(Vision Transformer)는 봅니다. BERT의 입력을 손으로 더해 보고, 작은 GPT와 작은 비전 트랜스포머를 학습하며,
# 앞의 두 모델의 층이 마스크 하나만 다르다는 것을 확인합니다.
#
# **먼저 읽을 것:** 7장(마스크), 8장(위치), 9장(블록).

# %%
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import itertools
import random

import keras
import matplotlib.pyplot as plt
import numpy as np

import keras_transformer as kt
from keras_transformer.fonts import font_families

keras.utils.set_random_seed(14)

# %% [markdown]
# ## 마스크에 따라 모델이 달라집니다
#
# 논문의 모델에는 인코더와 디코더가 있습니다. 뒤에 나온 모델들은 그중 하나만 쓰거나 둘 다 씁니다.
#
# | 모델 | 쓰는 부분 | 토큰이 보는 것 | 배우는 방법 | 잘하는 일 |
# | --- | --- | --- | --- | --- |
# | BERT (2018) | 인코더 | 모든 토큰 | 가려진 단어 맞히기 | 글의 이해 |
# | GPT (2018) | 교차 어텐션이 없는 디코더 | 자신과 과거 | 다음 단어 맞히기 | 글쓰기 |
# | T5, BART (2019) | 둘 다 | 인코더: 모두, 디코더: 과거와 원문 | 망가진 글 고치기 | 글을 받아 글을 쓰는 일 |
# | 비전 트랜스포머 (2020) | 인코더 | 이미지의 모든 패치 | 이미지 분류하기 | 이미지 |
#
# 정규화의 자리 같은 세부를 빼면 층은 모두 같습니다. 차이는 마스크에 있습니다.

# %%
tokens = ["my", "dog", "is", "cute"]
everything = np.ones((4, 4), bool)
past = kt.masks.look_ahead_mask(4)
kt.plots.masks(
    {"BERT: 인코더": everything, "GPT: 디코더": past},
    tokens,
    xlabel="키: 보이는 토큰",
    ylabel="쿼리: 보는 토큰",
)

# %% [markdown]
# **그림 읽기.** *dog*의 행을 봅시다. BERT에서는 *is*와 *cute*도 보지만, GPT에서는 *my*와 자신만 봅니다.
#
# 정말 마스크뿐일까요? 인코더 층과 교차 어텐션이 없는 디코더 층에 같은 파라미터를 넣습니다. 룩어헤드 마스크를 준 인코더
# 층은 디코더 층과 똑같이 계산합니다.

# %%
x = np.random.default_rng(0).normal(size=(1, 4, 8)).astype("float32")
encoder_layer = kt.layers.EncoderLayer(num_heads=2, d_ff=16, dropout=0.0)
decoder_layer = kt.layers.DecoderLayer(num_heads=2, d_ff=16, dropout=0.0)
encoder_layer(x)
decoder_layer(x)  # 메모리가 없으면 교차 어텐션도 없습니다
decoder_layer.set_weights(encoder_layer.get_weights())
np.testing.assert_allclose(encoder_layer(x, attention_mask=past), decoder_layer(x), atol=1e-5)
assert np.abs(encoder_layer(x) - decoder_layer(x)).max() > 0.01  # 마스크가 없으면 다릅니다

# %% [markdown]
# ## BERT의 입력은 세 임베딩의 합입니다
#
# BERT는 글 하나 또는 둘을 읽습니다. 두 글은 한 행에 들어갑니다. `[CLS]`, 첫째 글 A, `[SEP]`, 둘째 글 B, `[SEP]`의
# 순서입니다. 토크나이저는 통째로 알지 못하는 단어를 나눕니다. *playing*은 `play`와 `##ing`이 되고, `##`은 "띄어쓰기
# 없이 이어진다"는 뜻입니다.

# %%
pieces = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "my",
    "dog",
    "is",
    "cute",
    "he",
    "likes",
    "play",
    "##ing",
]
tokenizer = kt.text.WordPieceTokenizer(pieces)
packed = kt.text.pack(tokenizer, ["My dog is cute"], ["He likes playing"])
token_ids, segment_ids = (packed[name].numpy() for name in ("token_ids", "segment_ids"))
tokens = tokenizer.pieces(token_ids[0])
print(" ".join(tokens))
print(" ".join("AB"[i] for i in segment_ids[0]))
assert " ".join(tokens) == "[CLS] my dog is cute [SEP] he likes play ##ing [SEP]"
assert segment_ids[0].tolist() == [0] * 6 + [1] * 5

# %% [markdown]
# 토큰마다 벡터가 셋 있습니다. 단어 조각의 벡터, 세그먼트(A 또는 B)의 벡터, 위치의 벡터입니다. 셋을 더한 다음
# 정규화합니다(Devlin et al., 2019, 그림 2). 어텐션만으로는 두 글을 구별할 수 없고 단어의 순서도 알 수 없기 때문입니다.
# 세 벡터를 직접 찾아 더하고 모델과 비교합니다. (BERT의 피드 포워드 신경망은 ReLU 대신 그와 비슷한 함수 GELU를 씁니다.)


# %%
def small_bert(**options):
    """작은 층이 둘인 BERT입니다."""
    layers = kt.layers.Encoder(2, num_heads=2, d_ff=32, activation="gelu", layer_norm_epsilon=1e-12)
    embeddings = kt.layers.Embeddings(
        len(pieces),
        16,
        kt.layers.LearnedPositions(32),
        segments=kt.layers.SegmentEmbedding(2),
        norm=kt.layers.LayerNormalization(epsilon=1e-12),
    )
    return kt.models.EncoderModel(embeddings, layers, **options)


bert = small_bert()
token_table = bert.embeddings.tokens.get_weights()[0]
segment_table = bert.embeddings.segments.get_weights()[0]
position_table = bert.embeddings.positions.get_weights()[0]

parts = {
    "토큰": token_table[token_ids[0]],
    "세그먼트": segment_table[segment_ids[0]],
    "위치": position_table[: len(tokens)],
}
total = sum(parts.values())
centred = total - total.mean(-1, keepdims=True)
normalised = centred / np.sqrt(centred.var(-1, keepdims=True) + 1e-12)  # γ는 1, β는 0입니다
np.testing.assert_allclose(bert.encoder(normalised[None]), bert(packed), atol=1e-4)

# %% tags=["hide-input"]
plt.rcParams["font.family"] = font_families("".join(parts), "합")
figure, panels = plt.subplots(1, 4, figsize=(11, 3.6), sharey=True, layout="constrained")
for axes, (name, table) in zip(panels, {**parts, "합": total}.items(), strict=True):
    image = axes.imshow(table / np.abs(table).max(), cmap="RdBu_r", vmin=-1, vmax=1, aspect="auto")
    axes.set(title=name, xlabel="채널")
panels[0].set_yticks(range(len(tokens)), tokens)
figure.colorbar(image, ax=panels, label="값 (최댓값 = 1)")
plt.show()

# %% [markdown]
# **그림 읽기.** 첫째 그림에서 두 `[SEP]`의 행은 같습니다. 같은 단어 조각이기 때문입니다. 둘째 그림에는 A와 B, 두 가지
# 행만 있습니다. 합에서는 어느 두 행도 같지 않습니다.

# %% [markdown]
# ## 인코더 하나로 여러 가지 과제를 풉니다
#
# BERT는 먼저 보통의 글로 한 번 학습합니다. 가려진 단어를 맞히고(13장의 첫 모델이 한 일입니다), 글 B가 글 A에
# 이어지는지도 맞힙니다. 이것이 사전 학습(pre-training)입니다. 그다음 과제마다 작은 *헤드*(head)를 얹고 모델 전체를 조금
# 더 학습합니다. 이것이 미세 조정(fine-tuning)입니다. (여기서 헤드는 모델 위에 얹는 출력층이고, 어텐션의 헤드와는 다른
# 것입니다.) `[CLS]`의 상태가 글 전체의 벡터입니다.
#
# | 과제 | 입력 | 헤드 | 출력 |
# | --- | --- | --- | --- |
# | 분류: 좋은 평일까요? | A | `ClassificationHead(2)` | 클래스마다 로짓 하나 |
# | 함의: A에서 B가 따라 나올까요? | A와 B | `ClassificationHead(3)` | 예, 아니요, 알 수 없음 |
# | 유사도: A와 B는 얼마나 비슷할까요? | A와 B | `ClassificationHead(1)` | 값 하나 |
# | 객관식: A에 이어지는 B는 무엇일까요? | A와 각각의 B | `MultipleChoiceHead()` | 선택지마다 로짓 하나 |

# %%
one_text = kt.text.pack(tokenizer, ["My dog is cute"])
choices = {
    name: np.stack([ids, ids], axis=1)
    for name, ids in (("token_ids", token_ids), ("segment_ids", segment_ids))
}
tasks = {
    "classification": (kt.models.ClassificationHead(2), one_text, (1, 2)),
    "entailment": (kt.models.ClassificationHead(3), packed, (1, 3)),
    "similarity": (kt.models.ClassificationHead(1), packed, (1, 1)),
    "multiple choice": (kt.models.MultipleChoiceHead(), choices, (1, 2)),
}
for name, (head, inputs, shape) in tasks.items():
    # 같은 인코더 파라미터에 다른 헤드. Pooler는 [CLS]의 상태에 밀집층을 하나 적용합니다.
    model = bert.with_head(head, kt.models.Pooler())
    assert tuple(model(inputs).shape) == shape
    print(f"{name:16}{shape}")

# %% [markdown]
# ## GPT는 다음 단어를 맞힙니다
#
# GPT는 단어를 가리지 않습니다. 다음 단어를 거듭 맞힙니다. 그래서 레이블이 필요 없고, 글만 있으면 됩니다.
# `LanguageModel`은 메모리가 없는 디코더입니다.
#
# 우리의 글은 영어의 주어와 동사의 수(단수, 복수)가 일치하는 문장들입니다. "the dogs that chased the cat are tired"에서
# 동사는 가까운 *cat*이 아니라 *dogs*와 일치해야 합니다. 바로 앞 단어만 보는 모델은 절반을 틀립니다. 대부분의 문장으로
# 학습하고 나머지 문장으로 테스트합니다. 테스트 문장의 두 명사는 학습에서 이 순서로 함께 나온 적이 없습니다.

# %%
NOUNS = ("dog", "cat", "bird", "horse", "child", "student", "doctor", "singer")
PLURALS = ("dogs", "cats", "birds", "horses", "children", "students", "doctors", "singers")
lines, held_out = [], []
chooser = random.Random(14)
for first, second in itertools.permutations(range(len(NOUNS)), 2):
    side = held_out if chooser.random() < 0.15 else lines
    for subjects, objects in itertools.product((NOUNS, PLURALS), repeat=2):
        be = "is" if subjects is NOUNS else "are"
        for verb, state in itertools.product(("chased", "saw", "helped"), ("tired", "happy")):
            side.append(f"the {subjects[first]} that {verb} the {objects[second]} {be} {state}".split())
chooser.shuffle(lines)
words = ["<pad>", "<unk>", "<s>", "</s>", *sorted({word for line in lines for word in line})]
number = {word: i for i, word in enumerate(words)}
texts = np.array([[2, *(number[word] for word in line), 3] for line in lines], "int32")
print(len(lines), len(held_out), " ".join(lines[0]))

gpt = kt.models.LanguageModel(
    kt.layers.Embeddings(len(words), 32, kt.layers.LearnedPositions(16), dropout=0.0),
    kt.layers.Decoder(2, num_heads=4, d_ff=64, dropout=0.0),
)
gpt.compile(keras.optimizers.Adam(3e-3), kt.MaskedCrossentropy())
# 토큰마다 레이블은 다음 토큰입니다.
history = gpt.fit(texts[:, :-1], texts[:, 1:], batch_size=32, epochs=6, verbose=0)

# %% [markdown]
# 프롬프트를 주면 `generate`가 이어서 씁니다.

# %%
prompts = np.array([[2, *(number[word] for word in line[:6])] for line in held_out])
verbs = np.array([line[6] for line in held_out])
found = np.array(words)[np.array(gpt.generate(prompts, max_length=2).tokens)[:, 0, 0]]
mixed = np.array([(line[1] in NOUNS) != (line[5] in NOUNS) for line in held_out])
print(" ".join(held_out[0][:6]), "->", found[0])
print(f"정답률: {np.mean(found == verbs):.0%}")
print(f"가까운 명사가 헷갈리게 하는 문장의 정답률: {np.mean((found == verbs)[mixed]):.0%}")
assert np.mean((found == verbs)[mixed]) > 0.75

sentence = np.array([[2, *(number[word] for word in held_out[0])]])
other = sentence.copy()
other[0, 5:] = number["happy"]  # 다른 미래
np.testing.assert_allclose(gpt(sentence)[:, :5], gpt(other)[:, :5], atol=1e-5)  # 그 앞은 달라지지 않습니다

# %% [markdown]
# 마지막 검사는 룩어헤드 마스크의 효과를 보여 줍니다. 어느 토큰도 자신의 미래에 의존하지 않습니다. 그래서 글을 한 번
# 지나가면서 모든 자리를 동시에 학습할 수 있습니다.
#
# ## 샘플링과 온도
#
# 정답이 하나일 때는 가장 그럴듯한 단어를 고르면 됩니다. 하지만 이야기나 대화의 대답이 매번 똑같다면 지루할 것입니다.
# 그래서 언어 모델은 다음 단어를 그 확률대로 *뽑습니다*(sampling). 소프트맥스에 넣기 전에 로짓을 *온도*(temperature)
# $T$로 나눕니다.
#
# $$p_i = \text{softmax}(z / T)_i$$
#
# $1 / T$가 3장에서 본 날카로움입니다. $T$가 1보다 작으면 그럴듯한 단어의 확률이 더 커지고, 1보다 크면 드문 단어도
# 나옵니다. $T$가 0에 가까우면 그리디 탐색과 같습니다. *top-k*는 가장 그럴듯한 단어 $k$개 가운데서, *top-p*는 확률을
# 더해 $p$가 되는 가장 적은 수의 단어 가운데서 뽑습니다(Holtzman et al., 2020). 하나하나는 드물지만 모두 더하면 글을
# 망칠 만큼 많은 단어들을 잘라 내는 것입니다.

# %%
prompt = np.array([[2, *(number[word] for word in ["the", "dogs", "that"])]])
logits = np.array(gpt(prompt))[0, -1]
shares = {}
for temperature in (0.3, 1.0, 3.0):
    powers = np.exp((logits - logits.max()) / temperature)
    shares[temperature] = powers / powers.sum()
    likely = shares[temperature].argsort()[::-1][:4]
    print(temperature, {words[i]: round(float(shares[temperature][i]), 2) for i in likely})
assert shares[0.3].max() > shares[1.0].max() > shares[3.0].max()

for strategy in (
    kt.Greedy(),
    kt.Sample(seed=1),
    kt.Sample(temperature=3.0, seed=1),
    kt.Sample(top_p=0.9, seed=1),
):
    tokens = np.array(gpt.generate(prompt, strategy, max_length=5).tokens)[0, 0]
    print(f"{type(strategy).__name__}: the dogs that {' '.join(words[i] for i in tokens)}")

# %% tags=["hide-input"]
names = ("온도", "확률")
plt.rcParams["font.family"] = font_families(*names)
shown = shares[1.0].argsort()[::-1][:8]
figure, panels = plt.subplots(1, 3, figsize=(10, 2.8), sharey=True, layout="constrained")
for axes, (temperature, share) in zip(panels, shares.items(), strict=True):
    axes.bar(range(8), share[shown], color="#3a6ea5")
    axes.set(title=f"{names[0]} {temperature}", ylim=(0, 1))
    axes.set_xticks(range(8), [words[i] for i in shown], rotation=90)
panels[0].set_ylabel(names[1])
plt.show()

# %% [markdown]
# **그림 읽기.** 막대는 같은 단어 여덟 개입니다. 뒤에 올 수 있는 동사는 세 개이고, 가운데 그림에서는 이 셋이 확률을
# 거의 다 나누어 가집니다. 온도가 낮으면 셋째의 몫이 줄고 첫째의 몫이 늘어납니다. 온도가 높으면 뒤에 올 수 없는
# 단어에도 확률이 갑니다. 온도가 3이면 단계마다 문법이 깨질 수 있습니다.
#
# ## 2017년부터 오늘날의 언어 모델까지
#
# 오늘날의 대화 모델은 GPT와 같은, 교차 어텐션이 없는 디코더입니다. 층은 다섯 군데가 논문과 다릅니다.
# 줄마다 이 라이브러리에서 쓰는 이름을 먼저 적었습니다.
#
# - `normalize_first=True`: 더한 뒤에 정규화 → 서브층 앞에서 정규화(9장). 층이 많아도 쉽게 학습됩니다.
# - `norm="rms"`: 층 정규화 → RMS 정규화: 평균을 빼지 않고 편향도 더하지 않으며, 제곱 평균의 제곱근(root mean
#   square)으로 나누고 배율만 곱합니다. 성능이 비슷하고 계산이 적습니다(Zhang, Sennrich, 2019).
# - `RotaryPositions`: 위치를 한 번 더함 → 층마다 쿼리와 키를 위치만큼 *회전*. 스코어가 거리에 따라 정해집니다.
# - `GatedFeedForward`: 밀집층 두 개와 ReLU → 셋째 층이 *게이트*: $(\text{SiLU}(xW) \odot xV)\,W_2$. SiLU는 매끄러운
#   ReLU이고, $\odot$은 성분끼리의 곱이며, $W$, $V$, $W_2$는 층의 행렬입니다. 파라미터의 수가 같으면 더
#   낫습니다(Shazeer, 2020).
# - `num_key_value_heads`: 헤드마다 키와 밸류가 따로 있음 → 쿼리 헤드 여럿이 키와 밸류를 공유(*그룹 쿼리*, Ainslie et
#   al., 2023). 캐시가 작아집니다(10장).


# %%
def block(kind):
    """논문의 층, 또는 오늘날 언어 모델의 층입니다."""
    if kind == 2017:
        return kt.layers.DecoderLayer(8, 256, dropout=0.0)
    attention = kt.layers.MultiHeadAttention(
        8, 8, num_key_value_heads=2, positions=kt.layers.RotaryPositions(), use_bias=False
    )
    feed_forward = kt.layers.GatedFeedForward(168)
    return kt.layers.DecoderLayer(
        attention=attention, feed_forward=feed_forward, norm="rms", normalize_first=True, dropout=0.0
    )


sizes = {}
for kind in (2017, 2024):
    layer = block(kind)
    layer(np.zeros((1, 5, 64), "float32"))
    cache = layer.empty_cache(1, 1000)
    numbers = sum(int(np.prod(part.shape)) for part in keras.tree.flatten(cache) if len(part.shape) == 4)
    sizes[kind] = numbers
    print(kind, f"{layer.count_params():,}개의 파라미터, 자리 1,000개의 캐시에 값 {numbers:,}개")
assert sizes[2017] == 4 * sizes[2024]

# %% [markdown]
# 두 층 모두 `(배치, 길이, 64)`를 받아 같은 모양을 돌려줍니다. 키와 밸류의 헤드가 8개에서 2개로 줄어서 캐시는 4분의 1이
# 됩니다. 쿼리, 키, 밸류, 소프트맥스, 마스크는 이 강의에서 배운 그대로입니다.

# %% [markdown]
# ## 비전 트랜스포머: 패치가 곧 단어입니다
#
# 이미지를 패치(patch)로 자르고, 패치마다 행렬 하나를 곱해 벡터로 만듭니다. 그다음은 BERT와 거의 같습니다. 앞에 클래스
# 토큰이 있고, 위치를 더하고, 모든 것을 보는 인코더를 지나갑니다(Dosovitskiy et al., 2021). 다른 점은 정규화의
# 자리입니다. BERT의 층은 논문처럼 사후 정규화(post-norm)이고, 비전 트랜스포머의 층은 사전 정규화(pre-norm)입니다(9장).
# 그래서 아래 코드에 `normalize_first=True`가 있습니다. 손으로 해 봅시다. 자르고, 펴고, 곱합니다.

# %%
image = np.random.default_rng(1).normal(size=(1, 16, 16, 1)).astype("float32")
embed = kt.layers.PatchEmbedding(patch_size=4, d_model=8)
embedded = embed(image)
kernel, bias = embed.get_weights()

patches = [image[0, 4 * i : 4 * i + 4, 4 * j : 4 * j + 4].ravel() for i in range(4) for j in range(4)]
by_hand = np.stack(patches) @ kernel.reshape(16, 8) + bias
np.testing.assert_allclose(embedded[0], by_hand, atol=1e-5)
print(embedded.shape, "패치 16개가 단어 16개가 됩니다")

# %% [markdown]
# 이제 네 가지 모양의 이미지를 잡음을 섞어 그리고, 작은 비전 트랜스포머를 학습합니다.

# %%
SHAPES = ("가로줄", "세로줄", "십자", "네모")


def drawn(count, seed):
    """무작위 자리에 모양을 그립니다. 이미지와 모양의 레이블을 돌려줍니다."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(len(SHAPES), size=count)
    images = draw.normal(-0.7, 0.25, size=(count, 16, 16))
    for picture, label, (top, left), length in zip(
        images, labels, draw.integers(0, 8, (count, 2)), draw.integers(6, 9, count), strict=True
    ):
        middle = length // 2
        if label in (0, 2):
            picture[top + middle, left : left + length] += 1.3
        if label in (1, 2):
            picture[top : top + length, left + middle] += 1.3
        if label == 3:
            picture[top : top + length, left : left + length] += 1.3
            picture[top + 1 : top + length - 1, left + 1 : left + length - 1] -= 1.3
    return np.clip(images, -1, 1)[..., None].astype("float32"), labels


vit = kt.models.VisionTransformer(
    16,
    4,
    32,
    kt.layers.Encoder(2, 4, 64, dropout=0.0, activation="gelu", normalize_first=True),
    len(SHAPES),
    channels=1,
)
vit.compile(keras.optimizers.Adam(2e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
vit.fit(*drawn(3000, 1), batch_size=50, epochs=6, verbose=0)
images, labels = drawn(400, 2)
logits, scores = vit(images, return_attention_scores=True)
guessed = np.argmax(logits, -1)
print(f"새 이미지의 {np.mean(guessed == labels):.0%}를 맞혔습니다.")
assert np.mean(guessed == labels) > 0.7
names = np.array(SHAPES)
kt.plots.classified_images(
    images[:16], names[labels[:16]], names[guessed[:16]], wrong="{prediction} (정답: {label})"
)

# %% [markdown]
# **그림 읽기.** 이미지 위의 이름이 모델의 답입니다. 주황색이면 틀린 것이고, 괄호 안의 이름이 정답입니다.
#
# 클래스 토큰은 무엇을 볼까요? 16개 패치에 대한 어텐션 가중치를 작은 맵으로 그립니다. 마지막 층에서 헤드를 평균한
# 것입니다.

# %% tags=["hide-input"]
plt.rcParams["font.family"] = font_families(*SHAPES)
figure, panels = plt.subplots(2, 6, figsize=(9, 3.6), layout="constrained")
maps = np.array(scores[-1]).mean(1)[:, 0, 1:].reshape(-1, 4, 4)
for i, (above, below) in enumerate(panels.T):
    above.imshow(images[i, ..., 0], cmap="gray", vmin=-1, vmax=1)
    above.set_title(SHAPES[guessed[i]], fontsize=9)
    drawn_map = below.imshow(maps[i], cmap="Blues", vmin=0)
    for axes in (above, below):
        axes.set_xticks([])
        axes.set_yticks([])
panels[0, 0].set_ylabel("이미지")
panels[1, 0].set_ylabel("어텐션")
plt.show()

# %% [markdown]
# **그림 읽기.** 맵을 위의 이미지와 비교해 봅시다. 진한 칸은 모양 위나 모양이 서로 다른 끝부분에 있는 경우가 많습니다.
# 그렇지 않을 때도 있습니다. 맵에 너무 많은 의미를 두면 안 되는 이유는 13장에 있습니다.

# %% [markdown]
# ## 연습 문제
#
# ### 5분 문제
#
# T5의 디코더에는 원문이 있습니다. *프리픽스*(prefix) 언어 모델에는 원문이 없지만, 글의 앞부분을 원문처럼 다룹니다. 앞의
# 세 토큰은 서로 양쪽을 다 보고, 그 뒤의 토큰은 과거만 봅니다. `kt.masks.look_ahead_mask`로 여섯 토큰의 이 마스크를
# 만들어 봅시다. 이 장의 어느 두 마스크가 그 안에 들어 있을까요?

# %% tags=["hide-cell"]
causal = np.array(kt.masks.look_ahead_mask(6))[0, 0]
prefix = causal | (np.arange(6) < 3)  # 모두가 앞의 세 키를 봅니다
assert prefix[:3, :3].all()  # 앞의 셋끼리는 BERT의 마스크
assert not prefix[:3, 3:].any()  # 앞부분은 나중에 쓰는 것을 보지 못합니다
np.testing.assert_array_equal(prefix[3:, 3:], causal[3:, 3:])  # 나머지끼리는 GPT의 마스크
print(prefix.astype(int))

# %% [markdown]
# ### 한 시간 문제
#
# 로짓의 행을 받는 `nucleus(logits, temperature, top_p)`를 작성합니다. 온도로 나누고 소프트맥스를 구한 뒤, 가장
# 그럴듯한 단어부터 확률의 합이 `top_p`에 이를 때까지 남깁니다. 나머지는 0이 되고, 남은 확률은 합이 1이 되게 나눕니다.
# 적어도 한 단어는 남습니다. 확률을 로짓과 같은 순서로 돌려줍니다.
#
# `answer.py`에 NumPy만으로 작성합니다. `python course/check.py 14 answer.py`를 실행하면 맞는 성질과 틀린 성질을 알려
# 줍니다. 풀이는 공개하지 않습니다.
#
# ### 프로젝트
#
# 이 장의 작은 언어 모델을 가진 글로 학습합니다. 그리디 탐색, 온도 0.5와 1, top-p 0.9로 이어 쓴 글을 다섯 사람이 어느
# 것이 어느 것인지 모른 채 순위를 매깁니다. 가장 그럴듯한 글이 이기나요?

# %% [markdown]
# ## 더 읽을거리
#
# - Devlin et al., 2019, ["BERT"](https://arxiv.org/abs/1810.04805), 3절과 그림 2
# - Radford et al., 2019, ["Language Models are Unsupervised Multitask
#   Learners"](https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf)
#   (GPT-2)
# - Holtzman et al., 2020, ["The Curious Case of Neural Text Degeneration"](https://arxiv.org/abs/1904.09751): top-p
# - Touvron et al., 2023, ["LLaMA"](https://arxiv.org/abs/2302.13971), 2.2절: 2017년 이후에 달라진 것 가운데 위의 처음
#   네 가지
# - Dosovitskiy et al., 2021, ["An Image is Worth 16x16 Words"](https://arxiv.org/abs/2010.11929), 3.1절
# - 이 라이브러리의 문서: *Model families*(읽을 수 있는 체크포인트), *Building blocks*, *Fine-tuning*
# - 다음 장: **15. 어텐션은 설명인가?**
