"""Each example as a user runs it: a process of its own, in another folder, without this project's path."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
# What makes each quicker, and the start of a line near its end.
RUNS = {
    "functional_model.py": (["--epochs", "1"], "Saved, loaded, and answered alike."),
    "chatbot_korean.py": (["--epochs", "1"], "Saved to chatbot"),
    "classify_korean.py": (["--epochs", "1"], "Exported to classifier"),
    "fine_tune.py": (["--epochs", "1"], "Wrote fine_tuned"),
    "character_model.py": (["--epochs", "1"], "Saved to character_model."),
    "vision_shapes.py": (["--images", "256", "--epochs", "1"], "Exported to shapes"),
}


def run(name, *arguments, folder, timeout=600):
    """Runs an example in a folder; the library is found as an installed one is."""
    path = os.pathsep.join([str(EXAMPLES.parent), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "MPLBACKEND": "Agg"},
        capture_output=True,
        encoding="utf-8",
        timeout=timeout,
    )


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


def test_every_example_has_a_run():
    """Those that need a run, an export or a server of the user have tests of their own."""
    named = {"ask_export.py", "draw_beam.py", "show_tensorboard.py", "translate_on_ray.py"}
    helpers = {"korean_corpus.py"}
    found = {file.name for file in EXAMPLES.glob("*.py")}
    assert found == {*RUNS, "demo.py", *named, *helpers}
