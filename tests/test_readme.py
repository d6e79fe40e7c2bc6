"""What the README shows is what happens."""

import re
from pathlib import Path

import tensorflow as tf

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def test_quick_start_translates_and_exports_as_its_comments_say(tmp_path, monkeypatch, capsys):
    code = re.search(r"## Quick start\n\n```python\n(.*?)```", README, re.DOTALL)[1]
    assert len(code.strip().splitlines()) <= 22
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})
    shown = re.findall(r"print\(.*\)  # (\S+ ?\S*?)(?::.*)?\n", code)
    assert capsys.readouterr().out.splitlines()[-2:] == shown
    exported = tf.saved_model.load(str(tmp_path / "export" / "1"))
    answer = exported.signatures["serving_default"](text=tf.constant(["감사합니다"]))
    assert answer["translation"].numpy().tolist() == [b"thank you"]


def test_every_file_that_the_readme_names_exists():
    root = Path(__file__).parent.parent
    for name in re.findall(r"\]\(((?!http)[^)#]+)\)|`(examples/[\w.]+)`", README):
        assert (root / (name[0] or name[1])).exists(), name


def test_the_examples_of_the_parts_run_and_print_what_they_say(capsys):
    parts = (Path(__file__).parent.parent / "docs" / "parts.md").read_text(encoding="utf-8")
    code = "".join(re.findall(r"```python\n(.*?)```", parts, re.DOTALL))
    exec(compile(code, "parts.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == re.findall(r"print\(.*\)  # (.+)\n", code)
