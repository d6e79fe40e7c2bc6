"""The chapters of the course: complete, and the same program in both languages. `make course` executes them."""

import ast
import importlib
import json
import re
from pathlib import Path

import keras
import numpy as np
import pytest

COURSE = Path(__file__).parents[1] / "course"
ENGLISH = sorted((COURSE / "en").glob("*.py"))
NAMES = [file.stem for file in ENGLISH]
NUMBERS = [*map(str, range(1, 12)), "12a", "12b", *map(str, range(13, 17))]
HEADINGS = {
    "en": ("Exercise", "What to read next", ["Five minutes", "An hour", "A project"]),
    "ko": ("연습 문제", "더 읽을거리", ["5분 문제", "한 시간 문제", "프로젝트"]),
}
BEFORE = re.compile(r"\*\*(?:Before|먼저[^*]*):\*\*(.*?)(?:\n\n|\Z)", re.DOTALL)
HANGUL = re.compile("[가-힣]")
PLAIN_STYLE = re.compile(r"(?<![니시])다[.](?=[\s)]|$)")  # the course says -니다
OTHER_TERMS = re.compile(
    "에폭|케라스|파이썬|피드포워드|빔 탐색|그래디언트|라벨|웜업|문맥 벡터|부분층|그림에서 볼 것"
)


def cells(text):
    """Returns the cells of a Jupytext percent script, as (what is in the mark, content)."""
    before, *rest = re.split(r"^# %%(.*)\n", text, flags=re.MULTILINE)
    assert not before.strip(), "a chapter begins with a cell"
    pairs = zip(rest[::2], rest[1::2], strict=True)
    return [(mark.strip(), content.strip()) for mark, content in pairs]


def number_of(name):
    """Returns the number of a chapter as people write it, such as "4" or "12a"."""
    return name.partition("_")[0].lstrip("0")


def chapter(language, name):
    return cells((COURSE / language / f"{name}.py").read_text(encoding="utf-8"))


class Blank(ast.NodeTransformer):
    """Empties every str. The order of values in an f-string does not count: sentences differ."""

    def visit_Constant(self, node):
        return ast.Constant("") if isinstance(node.value, str) else node

    def visit_JoinedStr(self, node):
        values = [self.visit(value) for value in node.values if isinstance(value, ast.FormattedValue)]
        return ast.Tuple(sorted(values, key=ast.dump))


def program(code):
    """Returns a program with its strings blanked, as text that can be compared."""
    return ast.dump(Blank().visit(ast.parse(code)), indent=1)


def test_every_chapter_exists_in_both_languages():
    assert NAMES
    assert sorted(file.stem for file in (COURSE / "ko").glob("*.py")) == NAMES
    assert [number_of(name) for name in NAMES] == NUMBERS
    assert all(re.fullmatch(r"\d\d[ab]?_[a-z0-9_]+", name) for name in NAMES)


def test_both_languages_have_the_same_cells_and_the_same_program():
    for name in NAMES:
        english, korean = chapter("en", name), chapter("ko", name)
        assert [mark for mark, _ in english] == [mark for mark, _ in korean], name
        for (mark, code), (_, translated) in zip(english, korean, strict=True):
            if mark == "[markdown]":
                assert HANGUL.search(translated), f"{name}: not translated: {translated[:80]}"
            else:
                assert program(code) == program(translated), name


def test_korean_has_one_style_and_the_terms_of_the_course():
    wrong = []
    for name in NAMES:
        text = (COURSE / "ko" / f"{name}.py").read_text(encoding="utf-8")
        matches = [*PLAIN_STYLE.finditer(text), *OTHER_TERMS.finditer(text)]
        wrong += [(name, text[max(match.start() - 20, 0) : match.end()]) for match in matches]
    assert wrong == []


@pytest.mark.parametrize("language", HEADINGS)
def test_chapters_are_complete(language):
    for name in NAMES:
        check_chapter(language, name, *HEADINGS[language])


def check_chapter(language, name, exercise, reading, steps):
    """A title, a figure, questions with a hidden solution that is checked, a task, a project, and what to read next."""
    pages = chapter(language, name)
    texts = [
        re.sub("^# ?", "", content, flags=re.MULTILINE) for mark, content in pages if mark == "[markdown]"
    ]
    code = "\n".join(content for mark, content in pages if mark != "[markdown]")
    titles = [line for text in texts for line in text.splitlines() if line.startswith("# ")]
    assert len(titles) == 1, name
    assert texts[0].startswith(f"# {number_of(name)}. "), f"{name}: the title has the chapter's number"
    assert "plt.show()" in code or "kt.plots." in code, f"{name} has no figure"
    assert name == NAMES[0] or "import keras_transformer as kt" in code, name
    exercises = [i for i, (_, content) in enumerate(pages) if content.startswith(f"# ## {exercise}")]
    assert len(exercises) == 1, f"{name} has one cell that begins with '## {exercise}'"
    solutions = [i for i, (mark, _) in enumerate(pages) if 'tags=["hide-cell"]' in mark]
    assert solutions and min(solutions) > exercises[0], f"{name}: the solution is hidden, below the exercise"
    assert all("assert" in pages[i][1] for i in solutions), name
    found = re.findall(r"^### (.+)$", "\n".join(texts), re.MULTILINE)
    assert found == steps, f"{name}: the steps of the exercises"
    assert pages[exercises[0]][1].startswith(f"# ## {exercise}\n#\n# ### {steps[0]}\n"), name
    assert pages[-1][1].startswith(f"# ## {reading}"), name
    assert "](https://" in pages[-1][1], name


def test_the_plan_has_a_quiz_with_answers_for_each_week():
    plans = [(COURSE / language / "plan.md").read_text(encoding="utf-8") for language in ("en", "ko")]
    weeks = [re.split(r"^## (?:Week )?(\d+)(?:주)?: .*$", plan, flags=re.MULTILINE)[1:] for plan in plans]
    for plan, mark in zip(weeks, ("**Answer.**", "**답.**"), strict=True):
        assert plan[::2] == [str(week) for week in range(1, 14)]
        for week in plan[1::2]:
            questions = re.findall(r"^\d\. ", week, re.MULTILINE)
            assert 3 <= len(questions) <= 5 and week.count(mark) == len(questions)
    weeks = [weeks_of(language) for language in ("en", "ko")]
    assert weeks[0] == weeks[1] and sorted(weeks[0], key=NUMBERS.index) == NUMBERS
    tables = [plan.rpartition("\n## ")[2] for plan in plans]
    points = [re.findall(r"^\|[^|]+\| (\d+) \|", table, re.MULTILINE) for table in tables]
    assert points[0] == points[1] and sum(map(int, points[0])) == 100


def weeks_of(language):
    """Returns the week of each chapter, in the order of the plan."""
    plan = (COURSE / language / "plan.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| ([^|]+) \|", plan, re.MULTILINE)
    return {chapter: int(week) for week, chapters in rows for chapter in re.findall(r"\d+[ab]?", chapters)}


def chapters_in(text):
    """Returns the numbers of the chapters that a sentence names, as in "chapters 6 to 8 (masks) and 12a"."""
    numbers = []
    for part in re.findall(r"chapters? ((?:\d+[ab]?(?:, | and | to )?)+)", re.sub(r" \([^)]*\)", "", text)):
        for first, last in re.findall(r"(\d+[ab]?)(?: to (\d+))?", part):
            numbers += [first] if not last else map(str, range(int(first), int(last) + 1))
    return numbers


def test_the_plan_teaches_what_a_chapter_needs_before_it():
    weeks = weeks_of("en")
    for name in NAMES:
        text = re.sub(
            "^# ?", "", (COURSE / "en" / f"{name}.py").read_text(encoding="utf-8"), flags=re.MULTILINE
        )
        needed = chapters_in(BEFORE.search(text)[1])
        assert needed or name == NAMES[0], name
        late = [number for number in needed if weeks[number] > weeks[number_of(name)]]
        assert late == [], f"{name} needs {late}, which is taught later"


@pytest.mark.parametrize("language", HEADINGS)
def test_the_plan_names_headings_of_its_chapters(language):
    plan = (COURSE / language / "plan.md").read_text(encoding="utf-8")
    for chapters, headings in re.findall(r"^\| \d+ \| ([^|]+) \| ([^|]+) \|", plan, re.MULTILINE):
        numbers, headings = re.findall(r"\d+[ab]?", chapters), headings.strip().split(" · ")
        for number, heading in zip(numbers, headings, strict=True):
            (name,) = (name for name in NAMES if number_of(name) == number)
            text = (COURSE / language / f"{name}.py").read_text(encoding="utf-8")
            assert f"\n# ## {heading}\n" in text, f"{name} has no heading {heading!r}"


def test_a_changed_program_is_seen():
    assert program('print("a", 1)') == program('print("b", 1)')
    assert program('f"{x} of {y:3}"') == program('f"{y:3}개 중 {x}개"')
    assert program('print("a", 1)') != program('print("a", 2)')
    assert program('f"{x:.2f}"') != program('f"{y:.2f}"')


@pytest.mark.slow
@pytest.mark.tensorflow  # JAX gives the same, but compiles each operation: 30 s
def test_the_listing_of_the_whole_model_gives_the_logits_of_the_library():
    codes = [content for mark, content in chapter("en", "16_the_whole_model") if mark != "[markdown]"]
    names = {}
    for begin in ("class Transformer(keras.Model)", "def copy_weights("):
        (code,) = (code for code in codes if begin in code)
        assert "kt" not in code or "def copy_weights" in code, "the listing is plain Keras"
        exec(code, names)
    sizes = {"num_layers": 1, "d_model": 6, "num_heads": 2, "d_ff": 5}
    plain = names["Transformer"](11, **sizes)
    library = names["kt"].Transformer(11, **sizes, bos_id=1, eos_id=2)
    batch = {"source": np.array([[5, 3, 7, 0], [4, 8, 6, 9]]), "target": np.array([[1, 9, 0], [1, 4, 10]])}
    plain(batch)
    generator = np.random.default_rng(7)
    for weight in plain.weights:  # biases and norms, too, are no longer 0 and 1
        weight.assign(generator.normal(size=weight.shape))
    assert not np.allclose(plain(batch), library(batch), atol=1e-2)
    names["copy_weights"](plain, library)
    real = batch["target"] != 0
    logits = keras.ops.convert_to_numpy(plain(batch))[real]
    np.testing.assert_allclose(logits, keras.ops.convert_to_numpy(library(batch))[real], atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_a_chapter_that_fails_is_reported_and_a_good_one_runs_once(tmp_path, monkeypatch, capsys):
    for needed in ("jupytext", "nbclient", "ipykernel"):
        pytest.importorskip(needed, reason="pip install '.[course]'")
    monkeypatch.syspath_prepend(COURSE)
    execute = importlib.import_module("execute")
    monkeypatch.setattr(execute, "COURSE", tmp_path)
    monkeypatch.setattr(execute, "BUILT", tmp_path / "_build")
    (tmp_path / "en").mkdir()
    (tmp_path / "en" / "shape.svg").write_text("<svg/>")
    good = tmp_path / "en" / "01_good.py"
    good.write_text(
        "# %% [markdown]\n# ![a shape](shape.svg)\n\n"
        "# %%\nimport sys\nprint(6 * 7)\nprint('hm', file=sys.stderr)\n"
    )
    (tmp_path / "en" / "02_bad.py").write_text("# %%\n1 / 0\n")
    assert execute.main([]) == 1
    done = capsys.readouterr()
    assert "en/02_bad: failed" in done.out and "ZeroDivisionError" in done.err
    assert "1 executed, 0 unchanged, 1 failed" in done.out
    assert "\n    hm\n" in done.out, "what a chapter writes to stderr is shown"
    built = {file.name for file in (tmp_path / "_build").rglob("*.*")}
    assert built == {"01_good.ipynb"}
    notebook = (tmp_path / "_build" / "en" / "01_good.ipynb").read_text(encoding="utf-8")
    assert "42" in notebook and 'stderr"' not in notebook
    shown = json.loads(notebook)["cells"][0]
    assert "".join(shown["source"]) == "![a shape](attachment:shape.svg)"
    assert "".join(shown["attachments"]["shape.svg"]["image/svg+xml"]) == "PHN2Zy8+"

    (tmp_path / "en" / "02_bad.py").unlink()
    assert execute.main([]) == 0
    assert "0 executed, 1 unchanged, 0 failed" in capsys.readouterr().out

    good.write_text("# %%\nimport time\ntime.sleep(60)\n")
    assert execute.main(["--seconds-per-cell", "1"]) == 1
    assert "en/01_good: failed" in (done := capsys.readouterr()).out and "--seconds-per-cell" in done.out
    assert (tmp_path / "_build" / "en" / "01_good.ipynb").read_text(encoding="utf-8") == notebook
