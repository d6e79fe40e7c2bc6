# %% [markdown]
# # 10. 한 문장을 따라 한 걸음씩
#
# 이 장을 마치면 "저는 학생입니다."라는 문장 하나를 따라 트랜스포머 전체를 지나가게 됩니다. 토큰 ID, 임베딩, 위치,
# 인코더, 마스크가 있는 어텐션, 교차 어텐션, 그리고 다음 단어까지입니다. 단계마다 텐서의 모양이 어떤지, 캐시(cache)가 왜
# 계산을 줄여 주는지, 빔 서치(beam search)가 무엇을 하는지 알게 됩니다.
#
# **먼저 읽을 것:** 6장부터 9장까지.

# %% [markdown]
# ![트랜스포머. 이 장의 부분에 색이 있습니다](../../docs/images/transformer_10.ko.svg)
#
# 모델 전체입니다. 색이 있는 부분이 이 장에서 더하는 것입니다. 문장 하나가 토큰 ID에서 다음 토큰까지 가고,
# 그다음 차례를 위해 디코더로 돌아오는 길입니다.

# %% [markdown]
# ## 작은 번역기를 학습합니다
#
# 진짜 문장을 따라가려면 정말로 번역하는 모델이 필요합니다. 작은 모델에는 문장 수십 개면 충분합니다. 누가 무엇인지, 또는
# 무엇이 아닌지를 말하는 문장들입니다. 몇 초 만에 학습합니다. 학습은 12a장에서 설명하므로 여기서는 도구로만 씁니다.

# %%
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import collections
import itertools

import keras
import matplotlib.pyplot as plt
import numpy as np

import keras_transformer as kt
from keras_transformer.fonts import font_families

keras.utils.set_random_seed(10)

# %%
subjects = {
    "저는": "I am",
    "그는": "He is",
    "그녀는": "She is",
    "민수는": "Minsu is",
    "제 친구는": "My friend is",
    "우리 형은": "My brother is",
}
jobs = {
    "학생": "a student",
    "선생님": "a teacher",
    "의사": "a doctor",
    "군인": "a soldier",
    "가수": "a singer",
    "화가": "a painter",
}
pairs = []
for who, is_english in subjects.items():
    for job, job_english in jobs.items():
        pairs.append((f"{who} {job}입니다.", f"{is_english} {job_english}."))
        not_job = job + ("가" if job in ("의사", "가수", "화가") else "이")
        pairs.append((f"{who} {not_job} 아닙니다.", f"{is_english} not {job_english}."))
print(len(pairs), "쌍, 예를 들면", pairs[1])

tokenizer = kt.text.SentencePieceTokenizer.train(
    [text for pair in pairs for text in pair], 160, model_type="bpe"
)
model = kt.Transformer(tokenizer.vocab_size, num_layers=2, d_model=32, num_heads=4, d_ff=64, dropout=0.0)
model.compile(keras.optimizers.Adam(3e-3), kt.MaskedCrossentropy())
batches = kt.data.Batches(pairs, tokenizer, batch_tokens=1024, num_buckets=1)
history = model.fit(batches.dataset(), steps_per_epoch=batches.steps, epochs=60, shuffle=False, verbose=0)
print("손실: 처음, 마지막 에포크", [round(history.history["loss"][i], 3) for i in (0, -1)])

# %% [markdown]
# ## 1단계: 텍스트를 토큰 ID로 바꿉니다
#
# 토크나이저(tokenizer)는 문장을 자기가 아는 조각으로 자릅니다. `▁`는 단어가 시작되는 곳입니다. 조각마다 정수인 ID가
# 있습니다. 교과서에서 정수 인코딩(integer encoding)이라고 부르는 단계입니다. `</s>`는 문장의 끝을 나타냅니다.
#
# 조각은 어떻게 알게 될까요? *바이트 쌍 인코딩*(byte-pair encoding, BPE; Sennrich et al., 2016)은 단어와 그 횟수에서
# 조각을 배웁니다. 처음에는 글자 하나가 조각 하나입니다. 그다음에는 가장 자주 나란히 나오는 두 조각을 하나로 합치는
# 일을 되풀이합니다. 자주 나오는 단어는 통째로 한 조각이 되고, 한 번도 나오지 않은 단어는 나온 적이 있는 조각으로
# 나뉩니다.


# %%
def joined(pieces, pair):
    """단어에 이 조각 쌍이 나올 때마다 합칩니다."""
    made = []
    for piece in pieces:
        if made and (made[-1], piece) == pair:
            made[-1] += piece
        else:
            made.append(piece)
    return made


def learn_merges(counts, number):
    """단어와 그 횟수를 보고 어떤 쌍을 합칠지 배웁니다."""
    words, merges = {word: list(word) for word in counts}, []
    for _ in range(number):
        pairs = collections.Counter()
        for word, pieces in words.items():
            for pair in itertools.pairwise(pieces):
                pairs[pair] += counts[word]
        merges.append(max(pairs, key=pairs.get))
        words = {word: joined(pieces, merges[-1]) for word, pieces in words.items()}
        print(f"{''.join(merges[-1]):6}{pairs[merges[-1]]}")
    return merges


merges = learn_merges({"low": 5, "lower": 2, "newest": 6, "widest": 3}, 4)
assert ["".join(pair) for pair in merges] == ["es", "est", "lo", "low"]
unseen = list("lowest")
for pair in merges:
    unseen = joined(unseen, pair)
print("lowest ->", unseen)
assert unseen == ["low", "est"]

# %% [markdown]
# 우리 말뭉치(corpus, 모은 문장 전체)에서 `학생`은 `입니다`와도 나오고 `이 아닙니다`와도 나옵니다. 그래서 `학생`이 한
# 조각이고 `입니다`는 다른 조각입니다.

# %%
sentence = "저는 학생입니다."
ids = [*tokenizer.tokenize([sentence])[0].numpy().tolist(), model.eos_id]
pieces = tokenizer.pieces(ids)
print(pieces, ids, sep="\n")
assert pieces == ["▁저는", "▁학생", "입니다", ".", "</s>"]
source = np.array([ids], "int32")
n, d_model = len(ids), model.d_model

# %% [markdown]
# ## 2단계: ID를 벡터로 바꾸고 위치를 더합니다
#
# ID마다 임베딩에서 행을 하나 고르고 $\sqrt{d_{model}}$을 곱합니다. 그다음 조각의 위치를 더합니다(8장). 모델의 층
# `model.source`에 이 두 부분이 들어 있습니다.

# %%
x = model.source.tokens(source)
table = model.source.tokens.embeddings.numpy()
np.testing.assert_allclose(x[0], table[ids] * np.sqrt(d_model), rtol=1e-5)
x = model.source.positions(x)
print("위치를 더한 임베딩", tuple(x.shape))
assert x.shape == (1, n, d_model)

# %% [markdown]
# ## 3단계: 인코더를 한 층씩 지나갑니다
#
# 층마다 조각들이 서로를 보고(6장), 이어서 조각 하나하나를 따로 다룹니다(9장). 모양은 변하지 않습니다. 그 결과가
# *메모리*(memory)입니다. 조각마다 벡터가 하나씩 있고, 이 벡터에는 문장 전체의 정보가 섞여 있습니다.

# %%
memory = x
for i, layer in enumerate(model.encoder.layers):
    memory, scores = layer(memory, return_attention_scores=True)
    print(f"인코더 층 {i + 1}: 벡터 {tuple(memory.shape)}, 어텐션 가중치 {tuple(scores.shape)}")
np.testing.assert_allclose(memory, model.encode(source).states, atol=1e-5)

# %% [markdown]
# ## 4단계: 디코더가 단어 하나를 씁니다
#
# 지금까지 쓴 것은 `<s>`뿐입니다. 출력을 오른쪽으로 한 칸 민 것입니다(7장에서는 이 표시를 `<SOS>`로 썼습니다). 디코더는
# 이것을 임베딩으로 바꿉니다. 이어서 룩어헤드 마스크가 있는 셀프 어텐션으로 앞자리를 보고, 교차 어텐션으로 메모리에
# 묻고, 자리마다 벡터를 하나 내놓습니다. 이 벡터를 임베딩 행렬과 곱하면 ID마다 값이 하나씩 나옵니다. 소프트맥스를
# 통과하기 전의 이 값을 *로짓*(logit)이라고 하고, 소프트맥스가 로짓을 확률로 바꿉니다. 출력층에 행렬을 따로 두지 않고
# 임베딩 행렬을 다시 쓰는 것을 *가중치 공유*(weight tying)라고 합니다(3.4절; Press, Wolf, 2017). 논문과 이 모델에서는
# 원문의 임베딩, 번역문의 임베딩, 출력층이 행렬 하나를 함께 씁니다.

# %%
encoded = model.encode(source)
target = np.array([[model.bos_id]], "int32")
y = model.target.positions(model.target.tokens(target))
for i, layer in enumerate(model.decoder.layers):
    y, (own, cross) = layer(y, encoded.states, return_attention_scores=True)
    print(f"디코더 층 {i + 1}: {tuple(y.shape)}, 교차 어텐션 {tuple(cross.shape)}")
logits = model.output_embedding(y, reverse=True)  # 전치한 임베딩 행렬을 곱합니다
print("모든 ID의 로짓", tuple(logits.shape))
probabilities = keras.ops.convert_to_numpy(keras.ops.softmax(logits[0, -1]))
best = probabilities.argsort()[::-1][:3]
for i in best:
    print(f"  {tokenizer.pieces([int(i)])[0]!r}: {probabilities[i]:.3f}")
np.testing.assert_allclose(model.decode(target, encoded), logits, atol=1e-4)

# %% [markdown]
# ## 5단계: 문장이 끝날 때까지 되풀이합니다
#
# 가장 그럴듯한 조각을 뒤에 붙이고, 자리가 하나 늘어난 채로 디코더를 다시 돌립니다. 조각이 `</s>`이면 문장이 끝난
# 것입니다. 이것이 *그리디*(greedy) 탐색입니다.

# %%
written = [model.bos_id]
while written[-1] != model.eos_id and len(written) < 20:
    logits = model.decode(np.array([written], "int32"), encoded)
    written.append(int(logits[0, -1].numpy().argmax()))
    print(tokenizer.pieces(written[1:]))
translation = tokenizer.detokenize([written[1:]])[0].numpy().decode()
print(sentence, "->", translation)
assert translation == "I am a student."

# %% [markdown]
# ## 캐시: 같은 단어를 두 번 읽지 않습니다
#
# 위의 반복문은 단계마다 모든 자리를 다시 계산합니다. 룩어헤드 마스크가 있어서 앞자리는 변하지 않는데도 말입니다.
# *캐시*는 이미 쓴 것의 키와 밸류를 저장합니다. 그러면 단계마다 새 자리 하나만 읽으면 됩니다. 결과는 똑같습니다.

# %%
cache = model.decoder.empty_cache(1, len(written))
for index, token in enumerate(written[:-1]):
    step, cache = model.decode(np.array([[token]], "int32"), encoded, cache, index)
    whole = model.decode(np.array([written[: index + 1]], "int32"), encoded)
    np.testing.assert_allclose(step[0, 0], whole[0, -1], atol=1e-4)
found = model.generate(source, kt.Greedy())
assert found.tokens[0, 0].numpy()[: len(written) - 1].tolist() == written[1:]
print("generate도 캐시를 써서 같은 결과를 찾습니다")

# %% tags=["hide-input"]
names = (
    "캐시가 없을 때",
    "캐시가 있을 때",
    "자리",
    "단계",
    "계산",
    "저장",
)
plt.rcParams["font.family"] = font_families(*names)
figure, panels = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
steps = len(written) - 1
computed = np.tril(np.ones((steps, steps)))
for axes, table, title in zip(panels, (computed, computed / 2 + np.eye(steps) / 2), names, strict=False):
    axes.imshow(table, cmap="Blues", vmin=0, vmax=1.4)
    axes.set(title=title, xlabel=names[2], ylabel=names[3])
    axes.set_xticks(range(steps), tokenizer.pieces(written[:-1]))
    axes.set_yticks(range(steps), range(1, steps + 1))
    for (row, column), value in np.ndenumerate(table):
        axes.text(
            column, row, {1: names[4], 0.5: names[5], 0: ""}[value], ha="center", va="center", fontsize=8
        )
plt.show()

# %% [markdown]
# 행은 단계, 열은 토큰의 자리입니다. 캐시가 없으면 단계마다 행 전체의 키와 밸류를 계산합니다. 캐시가 있으면 대각선만
# 계산하고 나머지는 저장한 것을 그대로 씁니다. 글이 길수록 더 많이 줄어듭니다. 토큰이 1,000개이면 계산할 자리가 약
# 500,000개에서 1,000개로 줄어듭니다.

# %% [markdown]
# ## 어느 단어가 어디를 보았을까요?
#
# 마지막 디코더 층의 교차 어텐션 가중치를 헤드끼리 평균한 것입니다. 행은 모델이 쓴 조각, 열은 읽은 조각입니다.
# `student`를 쓰는 행은 어디가 가장 진할까요? 번역의 짝은 `▁학생`입니다. 짝이 아닌 칸이 가장 진한 행도 있고, 색은 모두
# 옅습니다. 메모리의 벡터마다 이미 문장 전체의 정보가 섞여 있어서, 디코더가 조각 하나만 볼 필요가 없기 때문입니다. 더
# 많은 문장으로 학습하는 13장의 번역기는 더 뚜렷하게 봅니다.

# %%
inputs = {"source": source, "target": np.array([written[:-1]], "int32")}
_, attention = model(inputs, return_attention_scores=True)
mean = attention["cross"][-1].numpy().mean(axis=1)
np.testing.assert_allclose(mean.sum(axis=-1), 1, rtol=1e-4)
kt.plots.attention_weights(
    attention["cross"][-1:],
    tokenizer.pieces(written[1:]),
    pieces,
    title="교차 어텐션",
    heads="mean",
    panel="2층, 헤드의 평균",
    label="어텐션 가중치",
)

# %% [markdown]
# ## 빔 서치는 후보를 여러 개 남깁니다
#
# 그리디 탐색은 한번 쓴 단어를 되돌리지 못합니다. 폭이 4인 *빔 서치*는 단계마다 가장 좋은 후보 네 개를 남깁니다. 이
# 후보를 *가설*(hypothesis)이라고 합니다. 가설의 점수(score)는 조각들의 로그 확률을 더한 값 $\log P$입니다. 조각이 하나
# 늘 때마다 1보다 작은 확률을 곱하므로, 점수만 비교하면 짧은 문장이 유리합니다. 그래서 마지막에는 긴 문장이 불리하지
# 않도록 점수를 보정합니다. 점수를 *길이 페널티*(length penalty)로 나눈 값으로 순서를 정합니다(Wu et al., 2016, 식 14).
#
# $$\text{lp}(y) = \left(\frac{5 + |y|}{6}\right)^{\alpha} \qquad
# \text{보정한 점수}(y) = \frac{\log P(y \mid x)}{\text{lp}(y)}$$
#
# $|y|$는 `</s>`를 포함한 조각의 수입니다. 논문은 $\alpha = 0.6$을 쓰고(6.1절), `kt.Beam`도 따로 지정하지 않으면
# 그렇습니다. $\alpha = 0$이면 보정하지 않고, $\alpha$가 클수록 긴 문장이 유리합니다. 아래에 출력하는 값은 보정하기 전의
# 점수입니다.

# %% [markdown]
# ![세 단계의 트리: 폭이 2이면 그리디 탐색이 놓치는 A dog barks를 찾습니다](../../docs/images/motion_beam.ko.svg)
#
# 사이트에서는 폭을 바꾸고 단계를 옮겨 볼 수 있습니다. 확률은 지어낸 것입니다. 폭이 1이면 그리디 탐색은 *A*보다 확률이
# 큰 *The*를 고르고, 확률이 0.100인 문장으로 끝납니다. 폭이 2이면 확률이 0.252인 *A dog barks*를 찾습니다.

# %%
beams = model.generate(source, kt.Beam(4, n_best=4))
for tokens, length, score in zip(beams.tokens[0], beams.lengths[0], beams.scores[0], strict=True):
    text = tokenizer.detokenize([tokens.numpy()[: int(length)].tolist()])[0].numpy().decode()
    print(f"{float(score):7.3f}  {text}")
scores = beams.scores[0].numpy()
assert scores[0] == scores.max()
np.testing.assert_allclose(model.score(source, beams.tokens[:, :1]).scores[0, 0], scores[0], atol=1e-3)

translator = kt.serving.Translator(model, tokenizer, strategy=kt.Beam(4))
print(translator.translate(["저는 학생입니다.", "그녀는 가수가 아닙니다."]))
assert translator.translate(["저는 학생입니다."]) == ["I am a student."]

# %% [markdown]
# ## 연습 문제
#
# ### 5분 문제
#
# `base`가 조각 20개짜리 문장을 `</s>`까지 조각 20개로 번역합니다. 디코더는 6층입니다. 디코더 층을 지나가는 자리의 수를
# 세어 봅시다. 한 자리가 여섯 층을 지나가면 여섯으로 셉니다.
#
# 1. 캐시가 없어서 단계마다 지금까지의 자리를 모두 계산한다면 몇 개일까요?
# 2. 캐시가 있으면 몇 개일까요?
# 3. 셀프 어텐션의 캐시는 자리와 층마다 512차원 키와 밸류를 float32로 저장합니다. 번역이 끝났을 때 몇 바이트일까요?

# %% tags=["hide-cell"]
# 1. 단계마다 1, 2, ..., 20개의 자리를 계산하므로 210개이고, 6층이므로 1,260개입니다.
# 2. 단계마다 자리 하나만 계산하므로 20개이고, 6층이므로 120개입니다.
without_cache = 6 * sum(range(1, 21))
with_cache = 6 * 20
assert (without_cache, with_cache) == (1260, 120)
# 3. 자리 20개, 6층, 키와 밸류 2개, 512차원, 4바이트입니다.
size = 20 * 6 * 2 * 512 * 4
assert size == 491_520  # 약 0.5메가바이트
print(without_cache, with_cache, f"{size:,}")

# %% [markdown]
# ### 한 시간 문제
#
# 바이트 쌍 인코딩 `learn_merges(words, number)`를 작성합니다. `words`는 단어와 그 개수입니다. 처음에는 모든 단어가
# 글자입니다. 한 번 돌 때마다 이웃한 쌍을 단어의 개수만큼 세고, 가장 잦은 쌍을 모든 곳에서 합칩니다. 개수가 같으면
# 사전 순서로 앞선 쌍을 고릅니다. 같은 글자가 이어지면 쌍은 겹치지 않습니다. *aaa*에는 *a a*가 한 번 있습니다. 합친
# 쌍의 목록을 많아야 `number`개 돌려줍니다.
#
# `answer.py`에 NumPy만으로 작성합니다. `python course/check.py 10 answer.py`를 실행하면 맞는 성질과 틀린 성질을 알려
# 줍니다. 풀이는 공개하지 않습니다.
#
# ### 프로젝트
#
# 가진 한국어 글로 토크나이저 둘을 학습합니다. 하나는 1,000조각, 하나는 8,000조각이고, 셋째는 글자 단위입니다.
# 각각으로 같은 작은 번역기를 학습합니다. 문장의 길이, 한 에포크의 시간, 드문 단어의 번역 품질을 비교합니다.

# %% [markdown]
# ## 더 읽을거리
#
# - Vaswani et al., 2017, ["Attention Is All You Need"](https://arxiv.org/abs/1706.03762), 3.1절, 그리고 빔에 관한
#   6.1절
# - Sennrich et al., 2016, ["Neural Machine Translation of Rare Words with Subword
#   Units"](https://arxiv.org/abs/1508.07909): 바이트 쌍 인코딩
# - Press, Wolf, 2017, ["Using the Output Embedding to Improve Language
#   Models"](https://arxiv.org/abs/1608.05859): 가중치 공유
# - Wu et al., 2016, ["Google's Neural Machine Translation System"](https://arxiv.org/abs/1609.08144), 7절: 길이 페널티
# - 이 라이브러리의 문서: "Decoding"과 "Attention viewer". 뷰어는 여러분이 만든 번역기의 모든 헤드와 단계를 보여 줍니다
# - 다음 장: **11. 왜 셀프 어텐션인가**
