# %% [markdown]
# # 12a. 학습: 워밍업과 레이블 스무딩
#
# 이 장을 마치면 논문의 방법대로 번역 모델을 학습할 수 있습니다. 올라갔다가 내려오는 학습률과, 정답 확률이 90% 정도면
# 충분하다고 보는 손실을 배웁니다. 작은 번역기를 직접 학습하면서 지켜봅니다. 그 번역이 얼마나 좋은지는 12b장에서
# 잽니다.
#
# **먼저 읽을 것:** 7장(마스크)과 9장(블록). 이 장의 학습은 코어 두 개에서 모두 30초쯤 걸립니다.

# %%
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import random

import keras
import matplotlib.pyplot as plt
import numpy as np

import keras_transformer as kt
from keras_transformer.fonts import font_families

keras.utils.set_random_seed(12)

# %% [markdown]
# ## 학습률은 올라갔다가 내려옵니다
#
# 트랜스포머에서 처음 몇 번의 갱신은 위험합니다. 파라미터는 무작위이고, 기울기는 아무 방향이나 가리키며, Adam은
# 기울기의 평소 크기를 아직 모릅니다. (Adam은 파라미터를 갱신할 때 가장 많이 쓰는 방법입니다. 기울기의 이동 평균을
# 기울기의 평소 크기로 나눕니다.) 그래서 논문은 아주 작은 학습률로 시작하여 `warmup` 스텝 동안 키웁니다. 이것이
# 워밍업(warm-up)입니다. 그 뒤에는 다시 줄입니다(5.3절, 식 3).
#
# $$\text{rate} = d_\text{model}^{-0.5} \cdot \min(\text{step}^{-0.5},\; \text{step} \cdot \text{warmup}^{-1.5})$$
#
# 첫째 항은 내려가고, 둘째 항은 직선으로 올라갑니다. 두 항은 `step = warmup`에서 만납니다. 논문은 스텝을 1부터
# 세고 Keras는 0부터 세므로, 라이브러리의 스케줄은 1을 더합니다.


# %%
def paper_rate(step, d_model, warmup):
    """논문의 학습률입니다. `step`은 1부터 셉니다."""
    return d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)


schedule = kt.WarmupSchedule(d_model=512, warmup_steps=4000)
for step in (1, 1000, 4000, 16_000, 100_000):
    rate = float(schedule(step - 1))
    print(f"{step:7,}: {rate:.7f}")
    np.testing.assert_allclose(rate, paper_rate(step, 512, 4000), rtol=1e-5)
np.testing.assert_allclose(paper_rate(4000, 512, 4000), (512 * 4000) ** -0.5)  # 꼭대기

# %%
widths = {f"d_model {d_model}": kt.WarmupSchedule(d_model) for d_model in (128, 256, 512, 1024)}
kt.plots.schedule(widths, xlabel="스텝", ylabel="학습률")

# %% [markdown]
# **그림 읽기.** 네 곡선 모두 4,000스텝에서 가장 높습니다. 폭이 넓은 모델일수록 학습률이 작습니다. 더 많은 항을
# 더하므로, 파라미터가 똑같이 바뀌어도 출력은 더 많이 움직이기 때문입니다.

# %% [markdown]
# ## 레이블 스무딩을 손으로 계산합니다
#
# 보통의 정답은 맞는 단어의 확률을 1, 나머지를 0으로 합니다. 소프트맥스는 이 값에 도달할 수 없으므로, 모델은
# 소프트맥스에 들어가는 값인 *로짓*(logit)의 차이를 끝없이 벌리면서 자기 답을 지나치게 확신하게 됩니다. 레이블
# 스무딩(label smoothing)은 맞는 단어에서 작은 비율 $\varepsilon$을 떼어 전체 어휘에 고르게 나누어 줍니다(5.4절은
# $\varepsilon = 0.1$입니다). 단어가 $V = 5$개이면 다음과 같습니다.
#
# $$q = (1 - \varepsilon) \cdot [0, 0, 1, 0, 0] + \varepsilon / V = [0.02, 0.02, 0.92, 0.02, 0.02]$$
#
# 손실은 크로스 엔트로피(cross-entropy) $-\sum_i q_i \log p_i$입니다. 자연로그를 쓰므로 단위는 *nat*입니다.

# %%
epsilon, right = 0.1, 2
smoothed = (1 - epsilon) * np.eye(5)[right] + epsilon / 5
np.testing.assert_allclose(smoothed, [0.02, 0.02, 0.92, 0.02, 0.02])

logits = np.array([0.5, -1.0, 3.0, 0.0, 1.0])
p = np.exp(logits) / np.exp(logits).sum()
by_hand = -(smoothed * np.log(p)).sum()
layer = kt.MaskedCrossentropy(label_smoothing=epsilon)
np.testing.assert_allclose(layer(np.array([[right]]), logits[None, None]), by_hand, rtol=1e-5)
print(f"스무딩 없이 {-np.log(p[right]):.3f}, 스무딩 {by_hand:.3f}")

# %% [markdown]
# 이 손실에서 가장 좋은 답은 무엇일까요? 맞는 단어의 확률을 $c$라 하고, 나머지 넷이 남은 확률을 똑같이 나눈다고
# 합시다. 보통의 손실은 $c = 1$까지 계속 내려갑니다. 스무딩한 손실은 $c = 0.92$에서 가장 낮고, 그 뒤로는 다시
# 올라갑니다. 지나친 확신에 벌점을 주는 것입니다. 가장 낮은 값은 0이 아니라 $q$의 엔트로피(entropy)
# $-\sum_i q_i \log q_i$입니다.

# %%
certainty = np.linspace(0.3, 0.9995, 1400)
others = (1 - certainty) / 4
plain = -np.log(certainty)
smooth = -(0.92 * np.log(certainty) + 4 * 0.02 * np.log(others))
best = certainty[smooth.argmin()]
assert abs(best - 0.92) < 1e-3
entropy = -(smoothed * np.log(smoothed)).sum()
np.testing.assert_allclose(smooth.min(), entropy, rtol=1e-5)

# %% tags=["hide-input"]
plt.rcParams["font.family"] = font_families("확률")
figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
axes.plot(certainty, plain, color="#707070", label="스무딩 없음")
axes.plot(certainty, smooth, color="#3a6ea5", label="레이블 스무딩, ε = 0.1")
axes.plot(best, smooth.min(), "o", color="#d1603d")
axes.annotate("0.92", (best, smooth.min()), xytext=(0.9, 0.75), ha="right", arrowprops={"arrowstyle": "->"})
axes.set(
    xlabel="맞는 단어의 확률 c",
    ylabel="손실 (nat)",
)
axes.legend()
plt.show()

# %% [markdown]
# **그림 읽기.** 주황 점을 봅시다. 파란 곡선은 그 점에서 다시 올라갑니다. 회색 곡선에는 그런 점이 없습니다.
#
# 스무딩하지 않은 크로스 엔트로피는 *펄플렉서티*(perplexity, PPL)로 나타내기도 합니다. 토큰당 손실이 $L$이면
# 펄플렉서티는 $e^L$입니다. 똑같이 그럴듯한 토큰 $e^L$개 가운데 하나를 고를 때만큼 모델이 망설인다는 뜻입니다. 손실이
# $\ln 5 \approx 1.61$이면 펄플렉서티는 5이고, 낮을수록 좋습니다. 라이브러리에서는 `kt.metrics.Perplexity`가 이 값을
# 구합니다.

# %% [markdown]
# ## 작은 문법으로 말뭉치를 만듭니다
#
# 진짜 말뭉치는 수백만 문장입니다. 여기서는 작은 모델이 30초 만에 배울 수 있는 것이 필요합니다. 그래서 존댓말로 된
# 한국어와 그 영어 번역을 만드는 작은 문법을 씁니다. 주어 열 개, 동사 여덟 개('이다' 포함), 시제 셋, 그리고 부정문이
# 있습니다. 이 라이브러리의 데모가 학습에 쓰는 `examples/korean_corpus.py`의 문법을 줄인 것입니다.
#
# 두 언어는 어순이 다릅니다. "저는 책을 읽습니다"를 차례대로 옮기면 "I book read"가 되므로, 단어를 하나씩 바꾸는
# 것으로는 번역이 되지 않습니다.

# %%
SUBJECTS = (
    "저는=I, 우리는=we, 그는=he, 그녀는=she, 그들은=they, 민수는=Minsu, "
    "지영은=Jiyoung, 학생은=the student, 의사는=the doctor, 제 친구는=my friend"
)
VERBS = {  # 영어의 세 형태: 한국어 어간, 현재, 과거, 미래, 그리고 목적어
    "read reads read": (
        "읽/읽습니다/읽었습니다/읽을 것입니다",
        "책을=a book, 신문을=a newspaper, 편지를=a letter",
    ),
    "drink drinks drank": ("마시/마십니다/마셨습니다/마실 것입니다", "물을=water, 커피를=coffee, 차를=tea"),
    "eat eats ate": ("먹/먹습니다/먹었습니다/먹을 것입니다", "사과를=an apple, 빵을=bread, 밥을=rice"),
    "buy buys bought": ("사/삽니다/샀습니다/살 것입니다", "책을=a book, 사과를=an apple, 빵을=bread"),
    "watch watches watched": ("보/봅니다/보았습니다/볼 것입니다", "영화를=a movie, 드라마를=a drama"),
    "go goes went": ("가/갑니다/갔습니다/갈 것입니다", "학교에=to school, 병원에=to the hospital"),
    "learn learns learned": ("배우/배웁니다/배웠습니다/배울 것입니다", "한국어를=Korean, 영어를=English"),
}
TIMES = ("=, 매일=every day", "=, 어제=yesterday", "=, 내일=tomorrow")
NEGATIONS = ("않습니다", "않았습니다", "않을 것입니다")
COPULAS = (("입니다", ""), ("이 아닙니다", "not "))
JOBS = "학생=a student, 선생님=a teacher, 군인=a soldier, 회사원=an office worker"


def entries(text):
    """표의 (한국어, 영어) 항목을 돌려줍니다."""
    return [entry.split("=") for entry in text.split(", ")]


def english_verb(subject, verb, tense, negative):
    """ "does not drink"처럼 조동사가 붙은 동사를 돌려줍니다."""
    base, third, past = verb.split()
    singular = subject not in ("I", "we", "they")
    if tense == 2:
        return f"will not {base}" if negative else f"will {base}"
    if negative:
        return f"{'did' if tense else 'does' if singular else 'do'} not {base}"
    return past if tense else third if singular else base


def sentence(*words):
    """단어를 이어 대문자로 시작하는 문장을 만듭니다."""
    text = " ".join(" ".join(words).split()) + "."
    return text[0].upper() + text[1:]


def generated():
    """모든 문장 쌍을 (주어, 동사, 목적어)별로 돌려줍니다."""
    groups = {}
    for korean, english in entries(SUBJECTS):
        for verb, (forms, objects) in VERBS.items():
            stem, *forms = forms.split("/")
            for thing, translation in entries(objects):
                group = groups.setdefault((english, verb, thing), [])
                for tense, form in enumerate(forms):
                    for when, adverb in entries(TIMES[tense]):
                        for negative in (False, True):
                            action = f"{stem}지 {NEGATIONS[tense]}" if negative else form
                            done = english_verb(english, verb, tense, negative)
                            pair = (
                                sentence(korean, when, thing, action),
                                sentence(english, done, translation, adverb),
                            )
                            group.append(pair)
        for job, translation in entries(JOBS):
            if english not in ("we", "they", "the student"):
                be = "am" if english == "I" else "is"
                groups[english, "be", job] = [
                    (sentence(korean, job + ending), sentence(english, be, no + translation))
                    for ending, no in COPULAS
                ] * 4  # 수가 적으므로 네 번씩 넣습니다
    return groups


# %% [markdown]
# (주어, 동사, 목적어) 조합의 10분의 1은 모든 시제와 함께 테스트용으로 남깁니다. 그러면 모델은 테스트의 단어는 모두
# 배우지만, 테스트의 문장은 하나도 배우지 않습니다. 이렇게 하지 않으면 통째로 외운 모델이 좋아 보입니다. "저는
# 학생입니다."도 테스트에 들어 있습니다.

# %%
groups = generated()
chooser = random.Random(12)
withheld = {("I", "be", "학생"), *chooser.sample(sorted(groups), len(groups) // 10)}
train = [pair for key, pairs in groups.items() if key not in withheld for pair in pairs]
test = sorted({pair for key in withheld for pair in groups[key]})
chooser.shuffle(train)
chooser.shuffle(test)
assert not set(train) & set(test) and ("저는 학생입니다.", "I am a student.") in test
print(f"학습 {len(train):,}쌍, 테스트 {len(test)}쌍")
for korean, english in train[:4]:
    print(f"  {korean}  =  {english}")

# %% [markdown]
# 토크나이저는 학습 문장에서 단어 조각을 배웁니다(방법은 10장에 있습니다). 두 언어가 한 어휘를 씁니다.
# `character_coverage=1.0`은 모든 음절을 어휘에 넣습니다. 기본값에서는 여기의 '갔'처럼 드문 글자가 "모르는 토큰"이
# 됩니다. `Batches`는 문장을 배치로 묶습니다. `batch_tokens`는 배치 하나에 담는 토큰의 최대 개수이고 패딩도 셉니다.
# `num_buckets=1`이면 길이별로 나누지 않습니다. 배치는 세 부분입니다. 인코더는 원문 `source`를 읽습니다. 디코더는 한
# 칸 오른쪽으로 민 번역 `target`을 읽는데(7장의 교사 강요), 이것은 `bos`(2)로 시작합니다. 디코더가 답해야 하는
# 레이블은 같은 번역이고 `eos`(3)로 끝납니다. 그래서 각 자리는 *다음* 조각을 배우고, 모든 자리가 동시에 배웁니다.

# %%
tokenizer = kt.text.SentencePieceTokenizer.train(
    [text for pair in train for text in pair], 300, character_coverage=1.0
)
batches = kt.data.Batches(train, tokenizer, batch_tokens=1024, num_buckets=1)
tests = kt.data.Batches(test, tokenizer, batch_tokens=1024, num_buckets=1)

inputs, targets = next(iter(batches.dataset()))[:2]
source, target = (inputs[name][0].numpy().tolist() for name in ("source", "target"))
labels = targets[0].numpy().tolist()
print("source", tokenizer.pieces([i for i in source if i]))
print("target", tokenizer.pieces([i for i in target if i]))
print("labels", tokenizer.pieces([i for i in labels if i]))
length = labels.index(3)
assert target[0] == 2 and target[1 : length + 1] == labels[:length]

# %% [markdown]
# ## 모델을 학습합니다
#
# 모델은 논문의 모델을 줄인 것입니다. 양쪽에 두 층씩, $d_\text{model} = 64$, 헤드는 넷입니다. Adam은 논문대로 $\beta_2
# = 0.98$, $\varepsilon = 10^{-9}$이고 드롭아웃은 0.1입니다. (이 $\varepsilon$은 Adam이 0으로 나누지 않게 하는 수로,
# 레이블 스무딩의 $\varepsilon$과 다릅니다.) `MaskedCrossentropy`는 위에서 본 손실을 진짜 토큰에 대해서만 평균합니다.
# 패딩은 세지 않습니다. 학습 전체가 수백 스텝뿐이므로 워밍업은 4,000이 아니라 150스텝입니다. `from_peak`는 가장 높은
# 학습률로 논문의 곡선을 정합니다. `kt.training.Adam`은 Keras의 Adam과 같은 계산을 더 빠르게 합니다.
#
# *에포크*(epoch)는 학습 문장 쌍을 한 번 모두 도는 것입니다. 에포크가 끝날 때마다 모델이 첫 테스트 문장을 번역합니다.
# 문장을 쓰는 방법은 10장에서 다룹니다. 여기서는 결과를 읽기만 합니다.

# %%
model = kt.Transformer(tokenizer.vocab_size, num_layers=2, d_model=64, num_heads=4, d_ff=128, dropout=0.1)
model.compile(
    kt.training.Adam(kt.WarmupSchedule.from_peak(4e-3, 150, 64), beta_2=0.98, epsilon=1e-9),
    kt.MaskedCrossentropy(label_smoothing=0.1),
    metrics=[kt.MaskedAccuracy()],
)
translator = kt.serving.Translator(model, tokenizer)
sources, references = map(list, zip(*test, strict=True))
first_lines = []


def translate_first(epoch, logs):
    """첫 테스트 문장을 번역합니다."""
    first_lines.append(translator.translate(sources[:1])[0])


history = model.fit(
    batches.dataset(),
    steps_per_epoch=batches.steps,
    epochs=8,
    shuffle=False,  # 에포크마다 순서가 이미 다릅니다
    validation_data=tests.dataset(epochs=1),
    callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=translate_first)],
    verbose=0,
).history
print(f"{sources[0]}  =  {references[0]}")
for epoch, (value, line) in enumerate(zip(history["val_loss"], first_lines, strict=True), 1):
    print(f"{epoch:3}  손실 {value:.2f}  {line:.80}")

# %%
vocab_size = tokenizer.vocab_size
high, low = 0.9 + 0.1 / vocab_size, 0.1 / vocab_size
floor = -high * np.log(high) - (vocab_size - 1) * low * np.log(low)
epochs = range(1, len(first_lines) + 1)

# %% tags=["hide-input"]
figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
axes.plot(epochs, history["loss"], "o-", color="#3a6ea5", label="학습")
axes.plot(epochs, history["val_loss"], "o-", color="#d1603d", label="테스트")
axes.axhline(floor, color="#707070", linestyle="--", label="가능한 가장 낮은 값")
axes.set(xlabel="에포크", ylabel="스무딩한 손실 (토큰당 nat)")
axes.legend()
plt.show()
assert floor < history["val_loss"][-1] < history["val_loss"][0]

# %% [markdown]
# **그림 읽기.** 손실은 0이 아니라 점선 위에서 멈춥니다. 점선은 스무딩한 정답의 엔트로피입니다. 처음 몇 에포크에서는
# 학습 손실이 더 높습니다. 드롭아웃은 학습할 때만 쓰고, 학습 손실은 모델이 나아지는 에포크 동안의 평균이기 때문입니다.
# 위에 출력한 번역이 그동안 어떻게 달라졌는지 봅시다. 처음에는 같은 조각을 되풀이하고, 그다음에는 영어 문장이지만 틀린
# 단어가 있고, 끝에는 맞는 단어를 씁니다.
#
# 아래 페이지에는 학습한 모델의 가중치와 토크나이저가 들어 있고, 서버 없이 작동합니다. 이 문법의 문장을 입력하면
# 페이지가 번역하고, 영어 조각마다 어느 한국어 조각을 읽는지 보여 줍니다. 이런 페이지를 읽는 방법은 13장에 있습니다.

# %%
kt.plots.attention(translator, ["저는 학생입니다.", sources[0]], language="ko")

# %% [markdown]
# ## 워밍업이 정말 필요할까요?
#
# 측정해 봅시다. 같은 모델을 같은 초깃값에서 120스텝 학습합니다. 가장 높은 학습률은 0.01입니다. 한 번은 60스텝 동안
# 워밍업을 한 뒤 줄이고, 한 번은 모든 스텝에서 이 학습률을 씁니다.


# %%
def short_training(learning_rate):
    """짧은 학습에서 20스텝마다의 평균 손실을 돌려줍니다."""
    keras.utils.set_random_seed(12)
    fresh = kt.Transformer(tokenizer.vocab_size, num_layers=2, d_model=64, num_heads=4, d_ff=128, dropout=0.1)
    adam = kt.training.Adam(learning_rate, beta_2=0.98, epsilon=1e-9)
    fresh.compile(adam, kt.MaskedCrossentropy(label_smoothing=0.1))
    return fresh.fit(batches.dataset(), steps_per_epoch=20, epochs=6, shuffle=False, verbose=0).history[
        "loss"
    ]


with_warmup = short_training(kt.WarmupSchedule.from_peak(0.01, 60, 64))
without = short_training(0.01)

# %% tags=["hide-input"]
figure, axes = plt.subplots(figsize=(7, 3.4), layout="constrained")
axes.plot(range(20, 140, 20), with_warmup, "o-", color="#3a6ea5", label="워밍업 있음")
axes.plot(range(20, 140, 20), without, "o-", color="#d1603d", label="모든 스텝에서 0.01")
axes.set(xlabel="스텝", ylabel="스무딩한 손실 (토큰당 nat)")
axes.legend()
plt.show()

# %% [markdown]
# **그림 읽기.** 시작과 끝을 봅시다. 처음에는 학습률이 큰 쪽이 앞섭니다. 그다음에는 다른 쪽이 앞지릅니다. 우리가
# 실행했을 때 마지막 20스텝의 손실은 1.1이고, 학습률이 일정한 쪽은 1.4였습니다. 두 학습은 처음에 올리는 것과 그 뒤에
# 내리는 것, 두 가지가 다르므로 이 실험만으로는 어느 것이 도움이 되었는지 알 수 없습니다. 학습률이 0.004처럼 낮으면 이
# 작은 모델은 워밍업이 없어도 잘 배웁니다. 깊은 모델은 그렇지 않습니다. 처음부터 쓰면 학습을 망칠 높은 학습률도
# 워밍업이 있으면 쓸 수 있습니다. 그 이유와, 사전 정규화(9장)는 왜 워밍업 없이도 학습되는지는 Xiong et al.(2020)이
# 설명합니다.

# %% [markdown]
# ## 연습 문제
#
# ### 5분 문제
#
# 1. 학습률은 `step = warmup`에서 가장 높습니다. 꼭대기를 지난 뒤 그 절반으로 떨어지는 것은 몇 번째 스텝일까요? 식으로
#    구하고 `kt.WarmupSchedule(512, 4000)`으로 확인해 봅시다.
# 2. $\varepsilon = 0.1$이고 어휘가 32,000조각일 때, 완벽한 모델이 도달할 수 있는 가장 낮은 손실은 얼마일까요?
#    $V = 5$일 때보다 클까요, 작을까요? 왜 그럴까요?

# %% tags=["hide-cell"]
# 1. 꼭대기를 지나면 학습률은 step**-0.5에 비례합니다. step**-0.5가 warmup**-0.5의 절반이 되는 것은
#    step = 4 * warmup일 때이므로 16,000번째 스텝입니다. 올라가는 중인 2,000번째 스텝에서도 꼭대기의 절반입니다.
peak, later = float(schedule(4000 - 1)), float(schedule(16_000 - 1))
np.testing.assert_allclose(later, peak / 2, rtol=1e-5)


# 2. 완벽한 모델은 스무딩한 정답과 똑같은 분포를 내놓습니다. 그때의 손실이 정답의 엔트로피이고, 그보다 낮을 수는
#    없습니다. V = 32,000이면 약 1.36으로, V = 5일 때의 약 0.39보다 큽니다. 떼어 낸 0.1을 더 많은 단어에 나누면
#    단어 하나의 몫이 작아지고, 작은 확률일수록 -log가 큽니다. 이 부분이 0.1 * ln(10 V)쯤이므로 V와 함께 커집니다.
def lowest_loss(size, share=0.1):
    """스무딩한 정답의 엔트로피입니다."""
    top, rest = 1 - share + share / size, share / size
    return -top * np.log(top) - (size - 1) * rest * np.log(rest)


np.testing.assert_allclose(lowest_loss(5), entropy)
assert 1.3 < lowest_loss(32_000) < 1.4
print(f"{lowest_loss(5):.3f}, {lowest_loss(32_000):.3f}")

# %% [markdown]
# ### 한 시간 문제
#
# `adam(start, gradient, rates)`를 작성합니다. `start`는 벡터, `gradient`는 그런 벡터의 함수, `rates`는 스텝마다의
# 학습률입니다. 학습률마다 Adam을 한 스텝 실행합니다. 식은 이 장에 없습니다. [Kingma, Ba,
# 2015](https://arxiv.org/abs/1412.6980)의 알고리즘 1을 읽습니다(반 쪽입니다). $\beta_1 = 0.9$, $\beta_2 =
# 0.98$, $\varepsilon = 10^{-9}$이고, 두 평균이 0에서 시작한 것을 보정합니다. 마지막 벡터를 돌려줍니다. `start`는 바꾸지
# 않습니다.
#
# `answer.py`에 NumPy만으로 작성합니다. `python course/check.py 12a answer.py`를 실행하면 맞는 성질과 틀린 성질을 알려
# 줍니다. 풀이는 공개하지 않습니다.
#
# ### 프로젝트
#
# 쌍이 적을 때 레이블 스무딩이 도움이 될까요? 이 장의 번역기를 250, 500, 1,000쌍과 모든 쌍으로, 스무딩 0, 0.1,
# 0.3으로, 시드 셋씩 학습합니다. 스무딩하지 않은 크로스 엔트로피와 완전히 맞은 번역의 비율을 비교합니다. 어느 쪽으로
# 보아도 가장 좋은 스무딩 값이 같을까요?

# %% [markdown]
# ## 더 읽을거리
#
# - Vaswani et al., 2017, ["Attention Is All You Need"](https://arxiv.org/abs/1706.03762), 5절(학습)
# - Kingma, Ba, 2015, ["Adam"](https://arxiv.org/abs/1412.6980), 알고리즘 1
# - Szegedy et al., 2016, ["Rethinking the Inception Architecture"](https://arxiv.org/abs/1512.00567), 7절: 레이블
#   스무딩이 처음 나온 곳
# - 이 라이브러리의 문서: *Training*(곡선을 읽는 법, 데이터에 맞는 크기)
# - 다음 장: **12b. BLEU, 그리디 탐색, 빔 서치**
