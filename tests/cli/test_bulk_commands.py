"""`keras-transformer translate`: standard input line by line, and files that it resumes."""

import io
import os
import signal
import sys

import pytest
from commands import assert_refused, run

from keras_transformer.cli import main
from keras_transformer.serving import Translator


@pytest.fixture
def mirrored(traced, monkeypatch):
    """Makes every translator write texts backwards. Two lists: its batches, and functions to call before each."""
    batches, acts = [], []

    def translate_batch(self, texts):
        batches.append(texts)
        for act in acts:
            act(texts)
        return [text.decode()[::-1] for text in texts]

    monkeypatch.setattr(Translator, "translate_batch", translate_batch)
    return batches, acts


@pytest.fixture
def files(tmp_path):
    """An input file of two windows, and the path of its translation."""
    (tmp_path / "in").write_text("".join(f"line {i}\n" for i in range(5000)))
    return tmp_path / "in", tmp_path / "out"


@pytest.mark.slow
def test_lines_that_fail_have_an_exit_code_of_their_own(tiny_run, files, mirrored, tmp_path):
    def fail(texts):
        if b"line 7" in texts:
            raise RuntimeError("no memory")

    mirrored[1].append(fail)
    (tmp_path / "few").write_text("".join(f"line {i}\n" for i in range(9)))
    code, out, err = run("translate", tiny_run, "--input", tmp_path / "few", "--output", files[1])
    assert (code, out.decode()) == (4, f"{files[1]}\n")
    assert "1 of 9 lines could not be translated" in err
    assert files[1].read_text().splitlines()[6:9] == ["6 enil", "", "8 enil"]
    code, out, err = run("translate", tiny_run, stdin=(tmp_path / "few").read_bytes())
    assert (code, out) == (4, files[1].read_bytes())
    assert "line 8 failed and is left empty: no memory" in err


def backwards(path):
    return "".join(f"{line[::-1]}\n" for line in path.read_text().splitlines())


def test_standard_input_is_translated_a_window_at_a_time(tiny_run, mirrored, monkeypatch):
    written = []
    out = io.TextIOWrapper(io.BytesIO(), "utf-8")

    class Input(io.BytesIO):
        def readline(self, *limit):
            written.append(out.buffer.getvalue().count(b"\n"))
            return super().readline(*limit)

    text = b"".join(b"%d\n" % i for i in range(5000))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Input(text), "utf-8"))
    monkeypatch.setattr(sys, "stdout", out)
    assert main(["translate", str(tiny_run)]) == 0
    ahead = [read - count for read, count in enumerate(written)]
    assert max(ahead) == 4095 and written[4096] == 4096
    assert out.buffer.getvalue().decode() == "".join(f"{i}"[::-1] + "\n" for i in range(5000))


@pytest.mark.slow
def test_a_file_is_translated_into_another(tiny_run, translator, pairs, tmp_path):
    sources = [source for source, _ in pairs[:5]]
    (tmp_path / "in").write_text("".join(f"{line}\n" for line in sources), encoding="utf-8")
    command = ["translate", tiny_run, "--input", tmp_path / "in", "--output", tmp_path / "out"]
    code, out, err = run(*command)
    assert (code, out.decode()) == (0, f"{tmp_path / 'out'}\n"), err
    expected = "".join(f"{line}\n" for line in translator.translate(sources))
    assert (tmp_path / "out").read_text(encoding="utf-8") == expected
    assert_refused(*command, named="--output must not exist yet")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_sets_the_exit_code_and_the_same_command_resumes(tiny_run, files, mirrored, number, code):
    batches, acts = mirrored
    command = ["translate", tiny_run, "--input", files[0], "--output", files[1], "--batch-size", 64]
    acts.append(lambda texts: os.kill(os.getpid(), number) if len(batches) == 70 else None)
    stopped, out, err = run(*command)
    assert (stopped, out) == (code, b""), err
    assert "4096 of 5000 lines" in err and "saved" in err and "Traceback" not in err
    assert not files[1].exists()
    batches.clear(), acts.clear()
    again, _, err = run(*command)
    assert again == 0 and "4096 of 5000 lines are done, going on" in err
    assert sum(map(len, batches)) == 5000 - 4096
    assert files[1].read_text() == backwards(files[0])


@pytest.mark.slow
def test_another_search_is_refused_by_name_without_restart(tiny_run, files, mirrored):
    _, acts = mirrored
    command = ["translate", tiny_run, "--input", files[0], "--output", files[1]]
    acts.append(lambda texts: os.kill(os.getpid(), signal.SIGINT))
    assert run(*command)[0] == 130
    acts.clear()
    assert_refused(*command, "--beam-width", 3, named="strategy: Greedy(), now Beam(width=3")
    assert run(*command, "--beam-width", 3, "--restart")[0] == 0
    assert files[1].read_text() == backwards(files[0])


@pytest.mark.parametrize("given", [("--input",), ("--output",), ("--restart",), ("--input", "--restart")])
def test_input_and_output_need_each_other(tiny_run, files, given):
    values = {"--input": files[0], "--output": files[1]}
    options = [word for name in given for word in (name, values.get(name)) if word]
    assert_refused("translate", tiny_run, *options, named="Give --input and --output")
    assert not files[1].exists()
