"""A small grammar that generates a parallel Korean-English corpus.

Every Korean sentence has exactly one English translation, so exact match is a fair score. The
Korean is polite and formal (-습니다, -습니까?); particles and endings follow from the spelling of
the word they are attached to. The English has no contractions and one article for each noun.

    python examples/korean_corpus.py --output corpus
"""

import argparse
import collections
import itertools
import pathlib
import random

TRAIN = 12_000
HELD_OUT = 500
SEED = 1
AT_LEAST = 12  # times that each word is trained on, where the grammar has it that often
WITHHELD = 0.1  # share of the (subject, predicate, complement) combinations kept from training
EXAMPLE = ("저는 학생입니다.", "I am a student.")  # its combination is always withheld
TENSES = ("present", "past", "future")


def _table(text):
    """Reads "Korean English, Korean English" with Korean of one word."""
    return dict(entry.split(maxsplit=1) for entry in text.split(","))


SUBJECTS = {
    "저": "I",
    "우리": "we",
    "당신": "you",
    "그": "he",
    "그녀": "she",
    "그들": "they",
    "민수": "Minsu",
    "지영": "Jiyoung",
    "수진": "Sujin",
    "현우": "Hyunwoo",
    "제 친구": "my friend",
    "제 여동생": "my younger sister",
    "의사": "the doctor",
    "학생": "the student",
    "학생들": "the students",
}
FIRST_PERSON = ("저", "우리")  # asks no questions about itself, calls itself no 선생님 (honorific)
OCCUPIED = ("의사", "학생", "학생들")  # already named by an occupation: no copula
PLURAL = ("we", "they", "the students")
JOBS = _table(
    "학생 student, 의사 doctor, 선생님 teacher, 간호사 nurse, 가수 singer, 요리사 chef, "
    "변호사 lawyer, 작가 writer, 배우 actor, 군인 soldier, 과학자 scientist, 회사원 office worker"
)
COUNTED = JOBS | _table(
    "사과 apple, 오렌지 orange, 바나나 banana, 샌드위치 sandwich, 계란 egg, 책 book, "
    "신문 newspaper, 잡지 magazine, 소설 novel, 편지 letter, 시 poem, 영화 movie, 드라마 drama, "
    "연극 play, 노래 song, 의자 chair, 책상 desk, 가방 bag, 모자 hat, 꽃 flower, 그림 picture, "
    "사진 photo, 자전거 bicycle, 버스 bus, 택시 taxi, 기차 train, 고양이 cat, 개 dog, 친구 friend"
)
UNCOUNTED = _table(  # or definite
    "빵 bread, 밥 rice, 고기 meat, 김치 kimchi, 생선 fish, 물 water, 커피 coffee, 우유 milk, "
    "차 tea, 주스 juice, 음악 music, 뉴스 the news, 한국어 Korean, 영어 English, 수학 math, "
    "역사 history, 문 the door, 창문 the window, 방 the room, 집 the house, 교실 the classroom, "
    "지하철 the subway, 그 him, 그녀 her, 그들 them, 민수 Minsu, 지영 Jiyoung, 수진 Sujin, "
    "현우 Hyunwoo"
)
PLACES = _table(
    "학교 school, 집 home, 도서관 the library, 병원 the hospital, 공원 the park, "
    "시장 the market, 은행 the bank, 회사 the office, 식당 the restaurant"
)

TRANSITIVE = (  # stem, English, objects that make sense
    ("먹", "eat", "사과 오렌지 바나나 샌드위치 계란 빵 밥 고기 김치 생선"),
    ("마시", "drink", "물 커피 우유 차 주스"),
    ("읽", "read", "책 신문 잡지 소설 편지 시"),
    ("쓰", "write", "책 소설 편지 시"),
    ("보", "watch", "영화 드라마 연극 뉴스"),
    ("듣", "listen to", "음악 노래 뉴스"),
    ("부르", "sing", "노래"),
    ("사", "buy", "사과 오렌지 빵 고기 생선 물 우유 커피 책 신문 의자 책상 가방 모자 꽃 자전거"),
    ("팔", "sell", "사과 계란 빵 고기 생선 책상 가방 모자 자전거"),
    ("만들", "make", "샌드위치 빵 김치 주스 의자 책상 가방 영화"),
    ("배우", "learn", "한국어 영어 수학 역사"),
    ("가르치", "teach", "한국어 영어 수학 역사 음악"),
    ("공부하", "study", "한국어 영어 수학 역사"),
    ("열", "open", "문 창문"),
    ("닫", "close", "문 창문"),
    ("청소하", "clean", "방 집 교실"),
    ("꾸미", "decorate", "방 집 교실"),
    ("보내", "send", "편지 사진 꽃"),
    ("그리", "draw", "그림 꽃 고양이 개"),
    ("찍", "take", "사진"),
    ("타", "take", "버스 택시 기차 지하철"),
    ("타", "ride", "자전거"),
    ("기다리", "wait for", "버스 택시 기차 지하철 친구 그 그녀 그들"),
    ("만나", "meet", "친구 의사 가수 배우 변호사 작가 그 그녀 그들 민수 지영 수진 현우"),
    ("돕", "help", "친구 학생 간호사 그 그녀 그들 민수 지영 수진 현우"),
)
STATIVE = (  # no time words; "like" takes the plural
    ("좋아하", "like", "사과 바나나 밥 김치 커피 차 책 잡지 영화 드라마 연극 그림 꽃 고양이 개 음악"),
    ("사랑하", "love", "그 그녀 그들 민수 지영 수진 현우"),
)
INTRANSITIVE = (  # stem, English, places (each verb also stands without one)
    ("공부하", "study", "학교 집 도서관"),
    ("일하", "work", "병원 시장 은행 회사 식당"),
    ("운동하", "exercise", "집 공원"),
    ("요리하", "cook", "집 식당"),
    ("쉬", "rest", "집 공원"),
    ("자", "sleep", "집"),
    ("걷", "walk", "공원"),
    ("수영하", "swim", ""),
    ("노래하", "sing", ""),
    ("춤추", "dance", ""),
    ("웃", "smile", ""),
    ("울", "cry", ""),
)
FEELINGS = _table("행복하 happy, 바쁘 busy, 피곤하 tired, 배고프 hungry, 슬프 sad, 아프 sick")
TRAITS = _table("친절하 kind, 똑똑하 smart, 건강하 healthy, 유명하 famous, 강하 strong")

TIMES = {
    "": "",
    "어제": "yesterday",
    "오늘": "today",
    "내일": "tomorrow",
    "매일": "every day",
    "아침에": "in the morning",
}
ACTION = {"present": ("", "매일", "아침에"), "past": ("", "어제", "오늘"), "future": ("", "내일", "오늘")}
FEELING = ACTION | {"present": ("", "오늘")}
STATE = {tense: ("",) for tense in TENSES}

# The ㄷ-, ㅂ- and 르-irregular stems, and the copula before it contracts: (past, future).
IRREGULAR = {
    "듣": ("들었", "들을"),
    "걷": ("걸었", "걸을"),
    "돕": ("도왔", "도울"),
    "부르": ("불렀", "부를"),
    "이": ("이었", "일"),
    "아니": ("아니었", "아닐"),
}
IRREGULAR_PAST = _table(
    "eat ate, drink drank, read read, write wrote, sing sang, buy bought, sell sold, make made, "
    "teach taught, send sent, draw drew, take took, ride rode, meet met, sleep slept, swim swam, "
    "go went, come came, become became, study studied, cry cried"
)
VOWELS = "ㅏㅐㅑㅒㅓㅔㅕㅖㅗㅘㅙㅚㅛㅜㅝㅞㅟㅠㅡㅢㅣ"
CONTRACTED = {"ㅏ": "ㅏ", "ㅐ": "ㅐ", "ㅓ": "ㅓ", "ㅗ": "ㅘ", "ㅜ": "ㅝ", "ㅣ": "ㅕ"}  # + 았, 었
FINALS = " ㄱㄲㄳㄴㄵㄶㄷㄹㄺㄻㄼㄽㄾㄿㅀㅁㅂㅄㅅㅆㅇㅈㅊㅋㅌㅍㅎ"


def batchim(word):
    """Returns the final consonant of the last syllable of `word`, a space where it has none.

    >>> batchim("학생"), batchim("의사")
    ('ㅇ', ' ')
    """
    return FINALS[(ord(word[-1]) - ord("가")) % len(FINALS)]


def particle(word, after_consonant, after_vowel):
    """Returns `word` with the particle that its batchim asks for.

    >>> particle("책", "을", "를"), particle("사과", "을", "를")
    ('책을', '사과를')
    """
    return word + (after_vowel if batchim(word) == " " else after_consonant)


def _vowel(syllable):
    return VOWELS[(ord(syllable) - ord("가")) // len(FINALS) % len(VOWELS)]


def _respell(word, final, vowel=None):
    """Gives the last syllable of `word` another final consonant and, if named, vowel."""
    code = ord(word[-1]) - FINALS.index(batchim(word)) + FINALS.index(final)
    if vowel is not None:
        code += (VOWELS.index(vowel) - VOWELS.index(_vowel(word[-1]))) * len(FINALS)
    return word[:-1] + chr(code)


def _past_stem(stem):
    if stem in IRREGULAR:
        return IRREGULAR[stem][0]
    if stem.endswith("하"):
        return stem[:-1] + "했"
    vowel = _vowel(stem[-1])
    if batchim(stem) != " ":
        return stem + ("았" if vowel in "ㅏㅗ" else "었")
    if vowel == "ㅡ":  # gives way to the vowel that the syllable before it asks for
        return _respell(stem, "ㅆ", "ㅏ" if len(stem) > 1 and _vowel(stem[-2]) in "ㅏㅗ" else "ㅓ")
    return _respell(stem, "ㅆ", CONTRACTED[vowel]) if vowel in CONTRACTED else stem + "었"


def conjugate(stem, tense, question=False):
    """Returns the polite formal form, -니까? or -니다., of a dictionary form without its 다.

    >>> conjugate("먹", "past"), conjugate("만들", "future", question=True)
    ('먹었습니다.', '만들 것입니까?')
    """
    ending = "니까?" if question else "니다."
    if tense == "past":
        return _past_stem(stem) + "습" + ending
    closed = batchim(stem) not in " ㄹ"  # ㄹ gives way as if it were not there
    if tense == "future":
        regular = stem + "을" if closed else _respell(stem, "ㄹ")
        return IRREGULAR.get(stem, (None, regular))[1] + " 것입" + ending
    return (stem + "습" if closed else _respell(stem, "ㅂ")) + ending


def _korean(subject, time, complement, stem, tense, negative, question):
    if stem == "이" and negative:  # 학생입니다, but 학생이 아닙니다
        complement, stem, negative = particle(complement, "이", "가"), "아니", False
    verb = conjugate("않" if negative else stem, tense, question)
    if stem == "이":
        complement += verb if batchim(complement) != " " else verb.replace("이었", "였")
        verb = ""
    words = (particle(subject, "은", "는"), time, complement, (stem + "지") * negative, verb)
    return " ".join(word for word in words if word)


def _noun(korean, plural=False):
    if korean in UNCOUNTED:
        return UNCOUNTED[korean]
    noun = COUNTED[korean]
    if plural:
        return noun + ("es" if noun.endswith(("s", "ch")) else "s")
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def _finite(verb, past, singular):
    """Conjugates an English verb, the first word of `verb`, without an auxiliary."""
    verb, *rest = verb.split()
    if past:
        verb = IRREGULAR_PAST.get(verb, verb.removesuffix("e") + "ed")
    elif singular and verb in ("study", "cry"):
        verb = verb[:-1] + "ies"
    elif singular:
        verb += "es" if verb.endswith(("ch", "o")) else "s"
    return " ".join([verb, *rest])


def _english(subject, time, complement, verb, tense, negative, question):
    past, singular = tense == "past", subject not in ("I", "you", *PLURAL)
    if tense == "future":
        auxiliary, main = "will", verb
    elif verb == "be":
        one, main = singular or subject == "I", ""
        auxiliary = (
            ("was" if one else "were") if past else ("am" if subject == "I" else "is" if one else "are")
        )
    else:
        auxiliary, main = "did" if past else "does" if singular else "do", verb
    if question:
        words = [auxiliary, subject, "not" * negative, main]
    elif negative or tense == "future" or verb == "be":
        words = [subject, auxiliary, "not" * negative, main]
    else:
        words = [subject, _finite(verb, past, singular)]
    sentence = " ".join(word for word in (*words, complement, TIMES[time]) if word)
    return sentence[0].upper() + sentence[1:] + (".?"[question])


def _predicates(subject):
    """Yields (stem, Korean complement, English verb, English complement, times by tense)."""
    for stem, verb, nouns in TRANSITIVE + STATIVE:
        times = ACTION if (stem, verb, nouns) in TRANSITIVE else STATE
        for noun in nouns.split():
            if noun not in subject.split():  # nobody meets himself
                yield stem, particle(noun, "을", "를"), verb, _noun(noun, verb == "like"), times
    for place, english in PLACES.items():
        for stem, verb in (("가", "go"), ("오", "come")):
            yield stem, place + "에", verb, "home" if place == "집" else "to " + english, ACTION
    for stem, verb, places in INTRANSITIVE:
        yield stem, "", verb, "", ACTION
        for place in places.split():
            where = ("in " if place == "공원" else "at ") + PLACES[place]
            yield stem, place + "에서", verb, where, ACTION
    for stem, adjective in (FEELINGS | TRAITS).items():
        yield stem, "", "be", adjective, FEELING if stem in FEELINGS else STATE
    for noun in JOBS if subject not in OCCUPIED else ():
        english = _noun(noun, plural=SUBJECTS[subject] in PLURAL)
        if noun != "선생님" or subject not in FIRST_PERSON:
            yield "이", noun, "be", english, {"present": ("",), "past": ("",)}
        yield "되", particle(noun, "이", "가"), "become", english, {"past": ("",), "future": ("",)}


def _combinations():
    """Maps each (subject, stem, Korean complement) to its pairs, one for each form."""
    groups = {}
    for subject, english_subject in SUBJECTS.items():
        moods = (False,) if subject in FIRST_PERSON else (False, True)
        for stem, korean, verb, english, times in _predicates(subject):
            groups.setdefault((subject, stem, korean), []).extend(
                (
                    _korean(subject, time, korean, stem, tense, negative, question),
                    _english(english_subject, time, english, verb, tense, negative, question),
                )
                for tense in times
                for time in times[tense]
                for negative in (False, True)
                for question in moods
            )
    return groups


def all_pairs():
    """Returns every (Korean, English) pair of the grammar, without duplicates, in a fixed order.

    >>> ("저는 학생입니다.", "I am a student.") in all_pairs()
    True
    """
    return list(itertools.chain.from_iterable(_combinations().values()))


def _in_turns(pools, rng):
    """Returns an item of each pool, drawn at random, then a second of each, until all are empty."""
    pools = [rng.sample(pool, len(pool)) for pool in rng.sample(pools, len(pools))]
    return [item for row in itertools.zip_longest(*pools) for item in row if item is not None]


def _words(pairs):
    return collections.Counter(word for pair in pairs for word in " ".join(pair).split())


def split(seed=SEED, train=TRAIN, held_out=HELD_OUT):
    """Draws training pairs and held-out pairs whose combinations are never trained on.

    A tenth of the (subject, predicate, complement) combinations, such as (그녀, 읽다, 책), is
    withheld with all its sentences: every tense, time word, negation and question. Held-out
    sentences come from those alone, and only where each of their words, Korean and English, is
    in the training sentences in other company. The combination (저, 이다, 학생) is always
    withheld, and `저는 학생입니다.` is the first held-out pair once its words are trained on.
    Training sentences are first those that bring each word to `AT_LEAST`; the rest are drawn
    from each (predicate, complement) in turn, so that those with few forms are seen as often as
    those with many.

    Args:
        seed: Seed of the draw; the same seed gives the same pairs.
        train: Number of training pairs.
        held_out: Number of held-out pairs.

    Returns:
        `(train_pairs, held_out_pairs)`, two lists of (Korean, English).

    Raises:
        ValueError: If the grammar has fewer pairs than asked for on either side.

    >>> train_pairs, held_out_pairs = split()
    >>> len(train_pairs), len(held_out_pairs), held_out_pairs[0]
    (12000, 500, ('저는 학생입니다.', 'I am a student.'))
    """
    rng = random.Random(seed)
    groups = _combinations()
    withheld = set(rng.sample(list(groups), round(WITHHELD * len(groups)))) | {("저", "이", "학생")}
    known = {}
    for combination, pairs in groups.items():
        if combination not in withheld:
            known.setdefault(combination[1:], []).extend(pairs)
    known = _in_turns(list(known.values()), rng)
    unknown = _in_turns([groups[key] for key in groups if key in withheld], rng)

    seen, needed = collections.Counter(), []
    for pair in known:
        if any(seen[word] < AT_LEAST for word in _words([pair])):
            needed.append(pair)
            seen.update(_words([pair]))
    train_pairs = list(dict.fromkeys(needed + known))[:train]
    rng.shuffle(train_pairs)
    vocabulary = _words(train_pairs).keys()
    unknown = [pair for pair in unknown if _words([pair]).keys() <= vocabulary]
    held_out_pairs = sorted(unknown, key=lambda pair: pair != EXAMPLE)[:held_out]
    for name, asked, got in (("train", train, train_pairs), ("held_out", held_out, held_out_pairs)):
        if len(got) < asked:
            raise ValueError(
                f"`{name}` must be at most the number of pairs there are, here {len(got)}. "
                f"Received: {name}={asked}."
            )
    return train_pairs, held_out_pairs


def write(folder, seed=SEED, train=TRAIN, held_out=HELD_OUT):
    """Writes `train.tsv` and `held_out.tsv`, a Korean<TAB>English pair a line, in UTF-8.

    `folder` is created if it is not there; the rest is as for `split`. Returns the two paths.
    """
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / "train.tsv", folder / "held_out.tsv"
    for path, pairs in zip(paths, split(seed, train, held_out), strict=True):
        path.write_text(
            "".join(f"{korean}\t{english}\n" for korean, english in pairs), encoding="utf-8", newline="\n"
        )
    return paths


def main():
    """Writes the corpus to a folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default="corpus", help="folder to write to")
    parser.add_argument("--train", type=int, default=TRAIN, help="number of training pairs")
    parser.add_argument("--held-out", type=int, default=HELD_OUT, help="number of held-out pairs")
    parser.add_argument("--seed", type=int, default=SEED, help="seed of the draw")
    arguments = parser.parse_args()
    for path in write(arguments.output, arguments.seed, arguments.train, arguments.held_out):
        print(path)


if __name__ == "__main__":
    main()
