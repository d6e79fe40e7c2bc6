"""Each example as a user runs it: a process of its own, in another folder, without this project's path."""

import gzip
import itertools
import os
import subprocess
import sys
from pathlib import Path

import korean_corpus
import korean_debian_data
import korean_help
import korean_help_data
import numpy as np
import pytest
from babel.messages.catalog import Catalog
from babel.messages.mofile import write_mo

from keras_transformer.data import read_tsv

EXAMPLES = Path(__file__).parents[2] / "examples"
# What makes each quicker, and the start of a line near its end.
RUNS = {
    "functional_model.py": (["--epochs", "1"], "Saved, loaded, and answered alike."),
    "chatbot_korean.py": (["--epochs", "1"], "Saved to chatbot"),
    "classify_korean.py": (["--epochs", "1"], "Exported to classifier"),
    "fine_tune.py": (["--epochs", "1"], "Wrote fine_tuned"),
    "character_model.py": (["--epochs", "1"], "Saved to character_model."),
    "time_series.py": (["--epochs", "1"], "Exported to time_series"),
    "tag_spaces.py": (["--epochs", "1"], "Exported to tag_spaces"),
    "vision_shapes.py": (["--images", "256", "--epochs", "1"], "Exported to shapes"),
    "caption_shapes.py": (["--pictures", "128", "--epochs", "1"], "Exported to captions"),
    "hear_numbers.py": (["--speakers", "1", "--epochs", "1"], "Exported to hearing"),
}


def run(name, *arguments, folder, timeout=600):
    """Runs an example in a folder; the library is found as an installed one is."""
    path = os.pathsep.join([str(EXAMPLES.parent), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments], cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "MPLBACKEND": "Agg"}, capture_output=True, encoding="utf-8",
        timeout=timeout,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_an_example_runs_from_another_folder(name, tmp_path):
    arguments, last = RUNS[name]
    done = run(name, *arguments, folder=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert any(line.startswith(last) for line in done.stdout.splitlines())


@pytest.mark.slow
def test_a_demo_that_learned_too_little_says_how_to_go_on(tmp_path):
    done = run("demo.py", "--epochs", "1", folder=tmp_path)
    assert done.returncode == 1, done.stderr[-2000:]
    assert "The model learns this mini-language, not Korean." in done.stdout
    assert "go on training with --epochs 2" in done.stderr


@pytest.mark.slow
def test_the_translator_of_help_texts_takes_any_pairs(tmp_path):
    train, held_out = korean_corpus.write(tmp_path, train=100, held_out=30)
    lines = Path(held_out).read_text(encoding="utf-8").splitlines(keepends=True)
    parts = {
        "train": Path(train).read_text(encoding="utf-8"),
        "val": "".join(lines[:10]),
        "test": "".join(lines[10:]),
    }
    for part, text in parts.items():
        (tmp_path / f"{part}.ko-en.tsv.gz").write_bytes(gzip.compress(text.encode()))
    done = run("korean_help.py", "--data", str(tmp_path), "--epochs", "1", "1", folder=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    for name in ("the beam's best", "reranked"):
        assert f"20 sentences of other pages, {name}: BLEU" in done.stdout
    assert done.stdout.count("reference: ") == 20
    assert done.stdout.splitlines()[-1].startswith("Exported to ")


def test_both_directions_rerank_what_the_beam_found():
    texts = np.array([["short", "two words"], ["first", "second"]], object)
    forward, backward = np.array([[-1.0, -2.0], [-1.0, -1.5]]), np.array([[-4.0, -4.0], [-9.0, -3.0]])
    found = texts, forward, backward, np.array([[1.0, 2.0], [1.0, 1.0]])
    assert korean_help.rerank(found, 0.0, 0.0) == ["short", "first"]
    assert korean_help.rerank(found, 0.1, 0.0) == ["short", "second"]
    assert korean_help.rerank(found, 0.0, 1.5) == ["two words", "first"]


def test_the_translator_of_help_texts_says_which_file_is_missing(tmp_path, capsys):
    assert korean_help.main(["--data", str(tmp_path)]) == 1
    assert f"Missing: {tmp_path / 'train.ko-en.tsv.gz'}" in capsys.readouterr().err


def test_every_example_has_a_run():
    """Those that need a run, an export or a server of the user have tests of their own."""
    named = {"ask_export.py", "draw_beam.py", "show_tensorboard.py", "translate_on_ray.py", "korean_help.py"}
    helpers = {
        "encoders.py", "sources.py", "korean_corpus.py", "korean_help_data.py", "korean_debian_data.py",
    }  # fmt: skip
    found = {file.name for file in EXAMPLES.glob("*.py")}
    assert found == {*RUNS, "demo.py", *named, *helpers}


def write_packages(folder, pages, messages):
    """Writes help pages and a catalogue as Debian's packages have them.

    Args:
        folder: The folder of the extracted packages.
        pages: A dict from a page's number to pairs of Korean and English paragraphs.
        messages: A dict from English to Korean texts of the interface.
    """
    for number, pairs in pages.items():
        for language, side in (("ko", 0), ("en-US", 1)):
            page = folder / korean_help_data.HELP / language / f"text/{number}.html"
            page.parent.mkdir(parents=True, exist_ok=True)
            texts = "".join(f'<p id="par_{i}">{pair[side]}</p>' for i, pair in enumerate(pairs))
            page.write_text(f"<html><body><p>not aligned</p>{texts}</body></html>", encoding="utf-8")
    catalogue = Catalog()
    for english, korean in messages.items():
        catalogue.add(english, korean)
    (folder / korean_help_data.CATALOGUES).mkdir(parents=True)
    with (folder / korean_help_data.CATALOGUES / "sw.mo").open("wb") as file:
        write_mo(file, catalogue)


def test_the_packages_of_help_texts_become_pairs(tmp_path):
    pages = {number: [(f"문단 {number}입니다.", f"This is paragraph {number}.")] for number in range(60)}
    menu = '<span hidden id="MAC1">Preferences</span><span hidden id="default1">Tools - <b>Options</b></span>'
    pages[60] = [("Not translated.", "Not translated."), (f"{menu} 선택", f"Choose {menu}")]
    held_out = next(n for n in range(60) if korean_help_data.part_of(Path(f"text/{n}.html")) == "test")
    pages[held_out].append(("짧은 글", "Short text"))  # of too few words to be scored
    write_packages(
        tmp_path, pages, {"_File": "파일(_F)", f"this is paragraph {held_out}.": "샌 문단", "OK": "OK"}
    )
    assert korean_help_data.part_of(Path("text/60.html")) == "train"
    assert korean_help_data.main(["--packages", str(tmp_path), "--output", str(tmp_path / "out")]) == 0
    found = {part: list(read_tsv(tmp_path / f"out/{part}.ko-en.tsv.gz")) for part in korean_help.PARTS}
    assert all(found.values())
    assert {("파일", "File"), ("Tools - Options 선택", "Choose Tools - Options")} <= set(found["train"])
    assert pages[held_out][0] in found["test"] and pages[held_out][1] not in found["test"]
    # Every paragraph is in one part, and no text of a held-out page is in the training pairs.
    expected = [pages[number][0] for number in range(60)]
    expected += [("Tools - Options 선택", "Choose Tools - Options"), ("파일", "File")]
    assert sorted(itertools.chain(*found.values())) == sorted(expected)


def test_missing_packages_are_named(tmp_path, capsys):
    assert korean_help_data.main(["--packages", str(tmp_path), "--output", str(tmp_path / "out")]) == 1
    assert f"Missing: {korean_help_data.HELP}/ko" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_catalogues_and_pages_of_any_package_become_pairs(tmp_path, capsys):
    share, held_out = tmp_path / "packages/usr/share", tmp_path / "held_out"
    page = '<page xmlns="http://projectmallard.org/1.0/"><title>{}</title><p>{} <em>{}</em></p>{}</page>'
    pages = {
        "ko/app/a.page": page.format(
            "앱", "새 창을 엽니다.", "창을 옮깁니다.", "<p>Not translated at all.</p>"
        ),
        "C/app/a.page": page.format(
            "App", "Opens a new window.", "Moves the window.", "<p>Not translated at all.</p>"
        ),
        "ko/app/other.page": page.format("앱", "다른 요소가 있습니다.", "", ""),
        "C/app/other.page": page.format("App", "It has other elements.", "", "<p>One more paragraph.</p>"),
    }
    for name, content in pages.items():
        (share / "help" / name).parent.mkdir(parents=True, exist_ok=True)
        (share / "help" / name).write_text(content, encoding="utf-8")
    catalogue = Catalog()
    for english, korean in {
        "_Open the file now": "지금 파일 열기(_O)",
        "Saves the <b>whole</b> file": "<b>전체</b> 파일을 저장합니다",
        "OK": "확인",
        "this sentence is held out.": "남겨 둔 문장입니다.",
        "Fi_nd the max_size value in AT&amp;T settings": "AT&amp;T 설정에서 max_size 값을 찾아보기(_N)",
        "Print %(name)s again now": "%(name)s 다시 인쇄하기",
        "Reads the broken text": "깨진 글\ufffd을 읽습니다",
    }.items():
        catalogue.add(english, korean)
    (share / "locale/ko/LC_MESSAGES").mkdir(parents=True)
    with (share / "locale/ko/LC_MESSAGES/app.mo").open("wb") as file:
        write_mo(file, catalogue)
    (share / "locale/ko/LC_MESSAGES/broken.mo").write_bytes(b"nothing")
    held_out.mkdir()
    for part in ("val", "test"):
        with gzip.open(held_out / f"{part}.ko-en.tsv.gz", "wt", encoding="utf-8") as file:
            file.write("다른 한국어 문장입니다.\tThis sentence is HELD OUT.\n")
    command = ["--packages", str(tmp_path / "packages"), "--held-out", str(held_out)]
    output = tmp_path / "more.ko-en.tsv.gz"
    assert korean_debian_data.main([*command, "--output", str(output)]) == 0
    assert list(read_tsv(output)) == [
        ("새 창을 엽니다. 창을 옮깁니다.", "Opens a new window. Moves the window."),
        ("AT&T 설정에서 max_size 값을 찾아보기", "Find the max_size value in AT&T settings"),
        ("전체 파일을 저장합니다", "Saves the whole file"),
        ("지금 파일 열기", "Open the file now"),
    ]
    said = capsys.readouterr()
    assert (
        "1 pages are aligned, 1 have other elements" in said.out and "broken.mo: cannot be read" in said.err
    )
    command = ["--packages", str(tmp_path / "none"), "--held-out", str(held_out), "--output", str(output)]
    assert korean_debian_data.main(command) == 1
