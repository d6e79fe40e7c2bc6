# %% [markdown]
# # 12b. BLEU, 그리디 탐색, 빔 서치
#
# 이 장을 마치면 번역이 얼마나 좋은지 손으로도, `sacrebleu`로도 잴 수 있습니다. 그리디 탐색이 놓치는 문장을 빔 서치가
# 어떻게 찾는지, 그것이 언제 도움이 되는지도 알게 됩니다.
#
# **먼저 읽을 것:** 10장(한 문장이 번역되는 과정)과 12a장(학습). 이 장의 학습은 코어 두 개에서 20초쯤 걸립니다.

# %%
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import random
from collections import Counter

import keras
import matplotlib.pyplot as plt
import numpy as np
import sacrebleu

import keras_transformer as kt
from keras_transformer.fonts import font_families

keras.utils.set_random_seed(12)

# %% [markdown]
# ## BLEU를 손으로 계산합니다
#
# 번역이 얼마나 좋은지 어떻게 잴까요? *n-그램*(n-gram)은 나란히 있는 단어 $n$개입니다. BLEU(Papineni et al., 2002)는
# 번역의 1, 2, 3, 4-그램 가운데 얼마가 사람이 쓴 *참조 번역*(reference)에도 있는지 셉니다. 같은 n-그램은 참조 번역에
# 나오는 횟수까지만 셉니다. 코드의 `&`가 두 개수 가운데 작은 쪽을 고릅니다. 이것이 정밀도 $p_1 \ldots p_4$이고, BLEU는
# 그 기하 평균입니다. 짧은 번역은 별 내용이 없어도 정밀도가 높을 수 있으므로 짧은 번역의 점수를 낮추는 *브레버티
# 페널티*(brevity penalty)를 곱합니다.
#
# $$\text{BLEU} = 100 \cdot \min(1, e^{1 - r/c}) \cdot (p_1 p_2 p_3 p_4)^{1/4}$$
#
# $c$는 번역의 길이, $r$은 참조 번역의 길이입니다. 필요 없는 단어 "the" 하나가 점수를 절반으로 떨어뜨립니다.


# %%
def bleu_by_hand(translation, reference):
    """한 문장의 BLEU입니다."""
    words, right_words = translation.split(), reference.split()
    precisions = []
    for size in range(1, 5):
        ours, theirs = (
            Counter(tuple(text[i : i + size]) for i in range(len(text) - size + 1))
            for text in (words, right_words)
        )
        precisions.append((ours & theirs).total() / ours.total())
    brevity = min(1.0, np.exp(1 - len(right_words) / len(words)))
    return precisions, brevity, 100 * brevity * np.prod(precisions) ** 0.25


reference = "She does not drink coffee every day"
for translation in ("She does not drink the coffee every day", "She does not drink"):
    precisions, brevity, value = bleu_by_hand(translation, reference)
    print(f"{translation}: {np.round(precisions, 3)}, {brevity:.3f}, BLEU {value:.1f}")
    library = sacrebleu.corpus_bleu([translation], [[reference]], tokenize="none").score
    np.testing.assert_allclose(value, library, rtol=1e-6)
np.testing.assert_allclose(bleu_by_hand("She does not drink the coffee every day", reference)[2], 50)

# %% [markdown]
# $\frac{7}{8} \cdot \frac{5}{7} \cdot \frac{3}{6} \cdot \frac{1}{5} = \frac{1}{16}$이고, 네제곱근은 2분의 1입니다. 둘째
# 번역은 정밀도가 모두 1이지만 단어 일곱 개 가운데 네 개만 썼으므로 $e^{1 - 7/4} \approx 0.47$을 곱해 47점입니다.
# 말뭉치의 실제 BLEU는 모든 문장에서 센 개수를 더한 다음에 나누고, 정해진 표준에 따라 문장을 단어로 자릅니다.
# `sacrebleu`가 두 가지를 모두 하고, 선택한 방법을 *시그니처*(signature)로 알려 줍니다. 시그니처가 없는 BLEU는 서로
# 비교할 수 없습니다. 참고로 논문의 base 모델은 영어→독일어에서 27.3, 영어→프랑스어에서 38.1입니다(표 2).

# %% [markdown]
# ## 12a장의 번역기를 다시 씁니다
#
# 문법도, 학습과 테스트로 나누는 방법도, 토크나이저도 12a장과 같습니다. 코드가 12a장과 같으므로 접어 두었습니다.

# %% tags=["hide-input"]
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


groups = generated()
chooser = random.Random(12)
withheld = {("I", "be", "학생"), *chooser.sample(sorted(groups), len(groups) // 10)}
train = [pair for key, pairs in groups.items() if key not in withheld for pair in pairs]
test = sorted({pair for key in withheld for pair in groups[key]})
chooser.shuffle(train)
chooser.shuffle(test)
assert not set(train) & set(test) and ("저는 학생입니다.", "I am a student.") in test

tokenizer = kt.text.SentencePieceTokenizer.train(
    [text for pair in train for text in pair], 300, character_coverage=1.0
)
batches = kt.data.Batches(train, tokenizer, batch_tokens=1024, num_buckets=1)

# %% [markdown]
# 모델과 학습도 12a장과 같습니다. 이번에는 에포크가 끝날 때마다 모델이 테스트 문장 100개를 번역하고, 우리는 BLEU로
# 점수를 매깁니다.

# %%
model = kt.Transformer(tokenizer.vocab_size, num_layers=2, d_model=64, num_heads=4, d_ff=128, dropout=0.1)
model.compile(
    kt.training.Adam(kt.WarmupSchedule.from_peak(4e-3, 150, 64), beta_2=0.98, epsilon=1e-9),
    kt.MaskedCrossentropy(label_smoothing=0.1),
)
translator = kt.serving.Translator(model, tokenizer)
sources, references = map(list, zip(*test, strict=True))
bleu_by_epoch = []


def score(epoch, logs):
    """테스트 문장을 번역하고 BLEU를 기억합니다."""
    translations = translator.translate(sources[:100])
    bleu_by_epoch.append(sacrebleu.corpus_bleu(translations, [references[:100]]).score)


model.fit(
    batches.dataset(),
    steps_per_epoch=batches.steps,
    epochs=8,
    shuffle=False,  # 에포크마다 순서가 이미 다릅니다
    callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=score)],
    verbose=0,
)
for epoch, bleu in enumerate(bleu_by_epoch, 1):
    print(f"{epoch:3}  BLEU {bleu:5.1f}")

# %% tags=["hide-input"]
plt.rcParams["font.family"] = font_families("이 번역기", "에포크")
figure, axes = plt.subplots(figsize=(7, 3.4), layout="constrained")
axes.axhspan(20, 40, color="#f1e3c8", label="논문의 base 모델(27.3, 38.1) 근처")
axes.plot(range(1, len(bleu_by_epoch) + 1), bleu_by_epoch, "o-", color="#d1603d", label="이 번역기")
axes.set(xlabel="에포크", ylabel="BLEU", ylim=(0, 102))
axes.legend()
plt.show()

# %% [markdown]
# **그림 읽기.** BLEU는 0 가까이에서 시작해 몇 에포크 만에 올라가, 논문의 결과가 있는 띠보다 훨씬 높아집니다. 둘을
# 비교해서는 안 됩니다. 이 문법에서는 옳은 번역이 하나뿐이지만, 진짜 언어에서는 여럿입니다. BLEU로 두 시스템을
# 비교하려면 같은 테스트 문장을 번역하고, 같은 방법으로 단어를 나누어야 합니다.

# %% [markdown]
# ## 그리디 탐색과 빔 서치를 비교합니다
#
# 모델은 확률을 줍니다. 그 확률로 문장을 만드는 것은 탐색입니다. *그리디*(greedy) 탐색은 단계마다 가장 그럴듯한 단어를
# 고르고 되돌아가지 않습니다. *빔 서치*(beam search)는 가설을 몇 개 유지합니다. 이것이 왜 중요한지 작은 표로 봅시다.

# %%
words = ["<pad>", "<unk>", "<s>", "</s>", "the", "a", "cat", "dog", "bird"]
after = {
    "<s>": {"the": 0.6, "a": 0.4},
    "the": {"cat": 0.4, "dog": 0.3, "bird": 0.3},
    "a": {"cat": 0.9, "dog": 0.1},
    **{noun: {"</s>": 1.0} for noun in ("cat", "dog", "bird")},
}
table = np.log([[after.get(a, {}).get(b, 1e-9) for b in words] for a in words]).astype("float32")


def step_of_table(tokens, cache, index):
    """각 토큰 다음의 로짓입니다."""
    return keras.ops.take(table, tokens, axis=0), cache


found = {}
for name, strategy in {"greedy": kt.Greedy(), "beam": kt.Beam(2, length_penalty=0.0)}.items():
    # decode는 토큰 다음의 로짓을 주는 함수라면 무엇이든 탐색합니다.
    hypotheses = kt.decoding.decode(step_of_table, (), strategy, [2], kt.decoding.Search(limits=5))
    ids = np.array(hypotheses.tokens)[0, 0]
    found[name] = " ".join(words[i] for i in ids if i > 3), float(np.exp(hypotheses.scores[0, 0]))
    print(f"{name:6}  {found[name][0]}, {found[name][1]:.2f}")
assert found["greedy"][0] == "the cat" and abs(found["greedy"][1] - 0.24) < 1e-3
assert found["beam"][0] == "a cat" and abs(found["beam"][1] - 0.36) < 1e-3

# %% [markdown]
# 그리디 탐색은 첫 단어로 가장 그럴듯한 "the"를 골랐고, 확률 $0.6 \cdot 0.4 = 0.24$로 끝났습니다. 빔 서치는 "a"도
# 남겨 두었기 때문에 $0.4 \cdot 0.9 = 0.36$을 찾았습니다.
#
# 이제 번역기입니다. 두 탐색이 찾은 문장의 로그 확률과 BLEU를 비교합니다.

# %%
rows = tokenizer.tokenize(sources).to_list()
longest = max(map(len, rows)) + 1
source_ids = np.array([[*row, 3, *[0] * (longest - len(row) - 1)] for row in rows], "int32")
results = {}
for name, strategy in {"greedy": kt.Greedy(), "beam": kt.Beam(4, length_penalty=0.0)}.items():
    hypotheses = model.generate(source_ids, strategy, max_length=40)
    ids = [
        row[:n]
        for row, n in zip(np.array(hypotheses.tokens)[:, 0], np.array(hypotheses.lengths)[:, 0], strict=True)
    ]
    texts = [text.decode() for text in tokenizer.detokenize([row.tolist() for row in ids]).numpy()]
    results[name] = np.array(hypotheses.scores)[:, 0], texts
    scores = kt.training.corpus_scores(texts, references)
    exact = np.mean([text == reference for text, reference in zip(texts, references, strict=True)])
    print(f"{name:6}  BLEU {scores['bleu']:.1f}  완전 일치 {exact:.0%}  {scores['bleu_signature']}")

gain = results["beam"][0] - results["greedy"][0]
print(f"빔 서치가 더 그럴듯한 문장을 찾은 원문: {np.sum(gain > 1e-4)}개 (모두 {len(test)}개)")

row = sources.index("저는 학생입니다.")
several = model.generate(source_ids[row : row + 1], kt.Beam(4, length_penalty=0.0, n_best=3), max_length=40)
counts = np.array(several.lengths)[0]
best_texts = tokenizer.detokenize(
    [row[:n].tolist() for row, n in zip(np.array(several.tokens)[0], counts, strict=True)]
)
print("저는 학생입니다.")
for text, log_probability in zip(best_texts.numpy(), np.array(several.scores)[0], strict=True):
    print(f"  {np.exp(log_probability):6.1%}  {text.decode()}")
print(f"0.9 ** {counts[0]} = {0.9 ** counts[0]:.2f}")
assert kt.training.corpus_scores(results["beam"][1], references)["bleu"] > 50

# %% [markdown]
# "저는 학생입니다."의 번역 후보 셋을 봅시다. 가장 그럴듯한 번역의 확률도 1보다 훨씬 작습니다. 레이블 스무딩 때문입니다.
# 모델은 조각마다 확률의 10분의 1쯤을 다른 조각에 남겨 두도록 배웁니다. 마지막 줄은 0.9를 조각의 수만큼 곱한 값입니다.
# 첫째 번역의 확률과 비교해 봅시다. 이 과제에서는 그리디 탐색이 찾은 문장이 거의 언제나 가장 그럴듯하므로 빔이 할 일이
# 거의 없습니다. 실제 언어에서는 빔이 BLEU를 조금 올리는 일이 많습니다. 더 그럴듯한 문장이 늘 더 좋은 것은 아닙니다.
# 빔이 아주 넓으면 모델이 지나치게 높은 확률을 주는 짧은 문장을 찾습니다(Koehn, Knowles, 2017). 그래서 길이
# 페널티(length penalty, 식은 10장)를 씁니다.

# %% [markdown]
# ## 연습 문제
#
# ### 5분 문제
#
# 1. 참조 번역은 "She does not drink coffee every day"입니다. 한 번역은 "She"를 빠뜨렸습니다. 다른 번역은 끝에 "every
#    day"를 두 번 썼습니다. 두 번역의 BLEU를 손으로 구합니다. 어느 잘못이 점수를 더 깎나요?
# 2. 작은 표에서 `<s>` 다음에 "a"가 올 확률을 $a$, "the"가 올 확률을 $1 - a$라고 합시다. $a$가 얼마보다 작으면 폭이
#    2인 빔의 답이 "a cat"이 아닐까요?

# %% tags=["hide-cell"]
# 1. "She"가 없으면 정밀도는 모두 1이고, 브레버티 페널티 e^(1 - 7/6)을 곱하면 84.6입니다. 두 단어가 더 있으면 정밀도는
#    7/9, 6/8, 5/7, 4/6입니다. 곱하면 (5 * 4) / (9 * 8)이고 네제곱근은 0.726입니다. 그러니 두 단어가 더 많으면
#    27점, 한 단어가 모자라면 15점을 잃습니다.
one_missing = bleu_by_hand("does not drink coffee every day", reference)
np.testing.assert_allclose(one_missing[0], 1)
np.testing.assert_allclose(one_missing[2], 100 * np.exp(1 - 7 / 6))
twice = bleu_by_hand(f"{reference} every day", reference)
np.testing.assert_allclose(twice[0], [7 / 9, 6 / 8, 5 / 7, 4 / 6])
np.testing.assert_allclose(twice[2], 100 * (5 * 4 / (9 * 8)) ** 0.25)
print(f"한 단어가 모자람: {one_missing[2]:.1f}, 두 단어가 더 많음: {twice[2]:.1f}")

# 2. "a cat"의 확률은 0.9 a이고 "the cat"의 확률은 0.4 (1 - a)입니다. 둘은 a = 4/13, 약 0.308에서 같습니다. 빔은 첫
# 단어를 둘 다 남겨 두므로, 이 값의 어느 쪽에서든 더 그럴듯한 문장을 찾습니다.
for share, wanted in ((0.30, "the cat"), (0.32, "a cat")):
    after["<s>"] = {"the": 1 - share, "a": share}
    table = np.log([[after.get(a, {}).get(b, 1e-9) for b in words] for a in words]).astype("float32")
    hypotheses = kt.decoding.decode(
        step_of_table, (), kt.Beam(2, length_penalty=0.0), [2], kt.decoding.Search(limits=5)
    )
    text = " ".join(words[i] for i in np.array(hypotheses.tokens)[0, 0] if i > 3)
    print(f"{share:.2f}: {text}")
    assert text == wanted

# %% [markdown]
# ### 한 시간 문제
#
# `beam_search(next_word, width, start, end, longest)`를 작성합니다. `next_word(tokens)`는 `start`로 시작하는 튜플
# `tokens` 다음에 올 단어마다 로그 확률을 돌려줍니다. 가장 그럴듯한 가설 `width`개를 유지합니다. `end`로 끝난 가설은
# 그대로 둡니다. 단어 `longest`개 뒤에는 멈춥니다. `end`도 단어로 세고 답에 넣습니다. 단어가 `longest`개인 가설은
# `end`로 끝나지 않아도 됩니다. 가장 좋은 가설의 토큰을 `start` 없이 돌려주고, 그 로그 확률도 돌려줍니다. 길이
# 페널티는 쓰지 않습니다.
#
# `answer.py`에 NumPy만으로 작성합니다. `python course/check.py 12b answer.py`를 실행하면 맞는 성질과 틀린 성질을 알려
# 줍니다. 풀이는 공개하지 않습니다.
#
# ### 프로젝트
#
# BLEU의 차이는 진짜일까요? 이 장의 번역기를 시드 둘로 학습합니다. 테스트 문장을 복원 추출로 1,000번 뽑고, 그때마다 두
# 시스템의 점수를 매겨 차이의 구간을 구합니다. 더 나은 시드가 드러나려면 테스트 문장이 몇 개 필요한가요?

# %% [markdown]
# ## 더 읽을거리
#
# - Vaswani et al., 2017, ["Attention Is All You Need"](https://arxiv.org/abs/1706.03762), 6.1절(폭 4인 빔, 길이
#   페널티 0.6)
# - Post, 2018, ["A Call for Clarity in Reporting BLEU Scores"](https://arxiv.org/abs/1804.08771)
# - Koehn, Knowles, 2017, ["Six Challenges for Neural Machine Translation"](https://arxiv.org/abs/1706.03872), 3.6절:
#   넓은 빔
# - 이 라이브러리의 문서: *Decoding*(탐색 방법과 그 비용)
# - 다음 장: **13. 어텐션 읽기**
