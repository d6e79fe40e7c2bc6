import collections
import doctest
import pathlib
import re
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "examples"))

import korean_corpus

BY_HAND = """
저는 학생입니다. | I am a student.
당신은 선생님입니까? | Are you a teacher?
제 여동생은 회사원이 아닙니다. | My younger sister is not an office worker.
그는 의사가 아닙니까? | Is he not a doctor?
그녀는 간호사였습니다. | She was a nurse.
민수는 가수가 아니었습니까? | Was Minsu not a singer?
저는 선생님이 될 것입니다. | I will become a teacher.
그는 매일 신문을 읽습니다. | He reads a newspaper every day.
수진은 아침에 커피를 마시지 않습니까? | Does Sujin not drink coffee in the morning?
그녀는 책을 읽었습니까? | Did she read a book?
우리는 어제 영화를 보지 않았습니다. | We did not watch a movie yesterday.
그들은 오늘 문을 열지 않았습니까? | Did they not open the door today?
당신은 내일 그를 도울 것입니까? | Will you help him tomorrow?
의사는 빵을 만들지 않을 것입니다. | The doctor will not make bread.
제 친구는 의자를 사지 않을 것입니까? | Will my friend not buy a chair?
그는 모자를 팝니다. | He sells a hat.
그녀는 도서관에서 공부할 것입니다. | She will study at the library.
그들은 배고프지 않습니까? | Are they not hungry?
민수는 지영을 사랑했습니다. | Minsu loved Jiyoung.
"""
BY_HAND = [tuple(line.split(" | ")) for line in BY_HAND.strip().splitlines()]


@pytest.fixture(scope="module")
def pairs():
    return korean_corpus.all_pairs()


@pytest.fixture(scope="module")
def sides():
    return korean_corpus.split()


def words(pairs):
    return collections.Counter(word for pair in pairs for word in " ".join(pair).split())


def combinations():
    """Maps each Korean sentence to its (subject, stem, complement)."""
    return {
        korean: combination
        for combination, group in korean_corpus._combinations().items()
        for korean, _ in group
    }


def test_pairs_written_by_hand_are_generated(pairs):
    generated = dict(pairs)
    assert [(korean, generated.get(korean)) for korean, _ in BY_HAND] == BY_HAND


PARTICLES = """
저 저는 저가 저를
지영 지영은 지영이 지영을
학생 학생은 학생이 학생을
의사 의사는 의사가 의사를
물 물은 물이 물을
사과 사과는 사과가 사과를
꽃 꽃은 꽃이 꽃을
지하철 지하철은 지하철이 지하철을
"""
FORMS = """
가 갑니다. 갔습니다. 갈
오 옵니다. 왔습니다. 올
보내 보냅니다. 보냈습니다. 보낼
배우 배웁니다. 배웠습니다. 배울
마시 마십니다. 마셨습니다. 마실
쉬 쉽니다. 쉬었습니다. 쉴
되 됩니다. 되었습니다. 될
쓰 씁니다. 썼습니다. 쓸
바쁘 바쁩니다. 바빴습니다. 바쁠
슬프 슬픕니다. 슬펐습니다. 슬플
청소하 청소합니다. 청소했습니다. 청소할
닫 닫습니다. 닫았습니다. 닫을
읽 읽습니다. 읽었습니다. 읽을
팔 팝니다. 팔았습니다. 팔
걷 걷습니다. 걸었습니다. 걸을
돕 돕습니다. 도왔습니다. 도울
부르 부릅니다. 불렀습니다. 부를
"""


def test_particles_follow_the_batchim():
    for word, *expected in map(str.split, PARTICLES.split("\n")[1:-1]):
        assert [korean_corpus.particle(word, *both) for both in ("은는", "이가", "을를")] == expected


def test_conjugation():
    for stem, present, past, future in map(str.split, FORMS.split("\n")[1:-1]):
        forms = [korean_corpus.conjugate(stem, tense) for tense in ("present", "past", "future")]
        assert forms == [present, past, f"{future} 것입니다."]


def test_sentences_are_well_formed(pairs):
    assert len(pairs) == len({korean for korean, _ in pairs}) and 30_000 <= len(pairs) <= 100_000
    for korean, english in pairs:
        assert re.fullmatch(r"[가-힣]+( [가-힣]+)*[.?]", korean), korean
        assert re.fullmatch(r"[A-Z][a-z]*( [A-Za-z]+)*[.?]", english), english
        assert korean[-1] == english[-1]
        assert not re.search(r"\ba [aeiou]|\ban [^aeiou]", english)
        if "어제" in korean:
            assert "것입" not in korean and " will " not in english.lower()
        if "내일" in korean:
            assert "것입" in korean and "will " in english.lower()
        if "매일" in korean or "아침에" in korean:
            assert not re.search("것입|[었았]습", korean)


def test_no_held_out_combination_is_trained_on(sides):
    of = combinations()
    assert [len(set(side)) for side in sides] == [12_000, 500]
    assert sides[1][0] == ("저는 학생입니다.", "I am a student.")
    train, held_out = ({of[korean] for korean, _ in side} for side in sides)
    assert not train & held_out
    assert len(held_out) > 200  # not a few combinations in all their forms


def test_every_word_is_trained_on(pairs, sides):
    seen = words(sides[0])
    assert words(pairs).keys() == seen.keys()
    assert min(seen.values()) >= 3


def test_every_noun_is_trained_on_sixty_times(sides):
    text = "\n".join(korean for korean, _ in sides[0])
    endings = "(?:을|를|이|가|에|에서|은|는|입니|였습|이었습)"
    nouns = korean_corpus.COUNTED | korean_corpus.UNCOUNTED | korean_corpus.PLACES
    counts = {noun: len(re.findall(rf"(?<![가-힣]){noun}{endings}", text)) for noun in nouns}
    assert not {noun: count for noun, count in counts.items() if count < 60}


@pytest.mark.slow
def test_command_line_writes_the_split(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "new" / "corpus"
    monkeypatch.setattr(
        sys,
        "argv",
        ["korean_corpus.py", "--output", str(folder), "--seed", "3", "--train", "2000", "--held-out", "70"],
    )
    korean_corpus.main()
    assert capsys.readouterr().out.split() == [str(folder / "train.tsv"), str(folder / "held_out.tsv")]
    for name, side in zip(("train", "held_out"), korean_corpus.split(3, 2000, 70), strict=True):
        lines = (folder / f"{name}.tsv").read_text(encoding="utf-8").splitlines()
        assert [tuple(line.split("\t")) for line in lines] == side


def test_examples_in_docstrings():
    assert doctest.testmod(korean_corpus).failed == 0
