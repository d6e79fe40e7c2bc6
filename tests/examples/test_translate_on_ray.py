"""Two workers translate a file, one of them is killed in the middle, and no line is lost or repeated."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import types

import pytest
import translate_on_ray

from keras_transformer.data import split_lines
from keras_transformer.serving import Translator

PARTS, LINES = 5, 6
SCRIPT = pathlib.Path(translate_on_ray.__file__)


@pytest.fixture
def source(pairs, tmp_path):
    """A file of a few parts, whose last line has no end."""
    path = tmp_path / "source"
    sentences = [korean for korean, _ in pairs]
    lines = ["", *(sentences[i % len(sentences)] for i in range(PARTS * LINES - 3))]
    path.write_bytes("\n".join(lines).encode() + b"\r\n\xfd\xfe\0")
    return path


def small_parts(folder):
    """The script with parts of a few lines."""
    text = SCRIPT.read_text(encoding="utf-8")
    path = folder / SCRIPT.name
    path.write_text(re.sub(r"^LINES = \d+", f"LINES = {LINES}", text, flags=re.MULTILINE), encoding="utf-8")
    return path


def test_parts_are_the_whole_file(source, monkeypatch):
    monkeypatch.setattr(translate_on_ray, "LINES", LINES)
    content = source.read_bytes()

    def found(parts):
        return [line for part in parts for line in split_lines(content[part["start"] :])[: part["lines"]]]

    parts = translate_on_ray.split(source)
    assert [part["part"] for part in parts] == list(range(PARTS))
    assert [part["lines"] for part in parts] == [LINES] * (PARTS - 1) + [LINES - 1]
    assert found(parts) == split_lines(content)
    monkeypatch.setattr(translate_on_ray, "BYTES", 10)
    parts = translate_on_ray.split(source)
    assert found(parts) == split_lines(content) and len(parts) > 2 * PARTS


class InThisProcess:
    """Takes the place of Ray, which the tests do not install: it does the parts one after the other."""

    def __init__(self):
        self.data = types.SimpleNamespace(
            from_items=self.from_items, ActorPoolStrategy=lambda **options: None
        )

    def init(self):
        pass

    def shutdown(self):
        pass

    def from_items(self, items, **options):
        self.items = items
        return self

    def map_batches(self, worker, fn_constructor_args, **options):
        self.worker = worker(*fn_constructor_args)
        return self

    def iter_rows(self):
        for item in self.items:
            done = self.worker({name: [value] for name, value in item.items()})
            yield {name: values[0] for name, values in done.items()}


@pytest.fixture
def in_this_process(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", InThisProcess())
    monkeypatch.setattr(translate_on_ray, "LINES", LINES)


def test_failed_lines_and_files_are_left_out_and_counted(
    in_this_process, tiny_run, pairs, tmp_path, monkeypatch, capsys
):
    lines = {f"{i}.txt": [korean for korean, _ in pairs[i : i + 8]] for i in range(2)}
    for name, each in lines.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in each), encoding="utf-8")
    (tmp_path / "bad.txt").mkdir()
    failing = lines["0.txt"][0]

    def mirror(self, texts, **options):
        if failing.encode() in texts:
            raise ValueError("this line cannot be translated")
        return [text.decode()[::-1] for text in texts]

    monkeypatch.setattr(Translator, "translate_batch", mirror)
    sources = [tmp_path / name for name in (*lines, "bad.txt", "nowhere.txt")]
    arguments = [str(each) for each in (tiny_run, *sources, tmp_path / "out")]
    with pytest.warns(UserWarning, match="line 1 failed and is left empty"):
        assert translate_on_ray.main(arguments) == translate_on_ray.EXIT_SOME_FAILED == 4
    assert "1 lines could not be translated and are empty" in capsys.readouterr().err
    assert translate_on_ray.main(arguments) == translate_on_ray.EXIT_SOME_FAILED  # the other outputs exist
    err = capsys.readouterr().err
    assert "2 files could not be used" in err and all(f"{path} is left out: " in err for path in sources[2:])
    for name, each in lines.items():
        written = (tmp_path / "out" / name).read_text(encoding="utf-8").split("\n")
        assert written == [*("" if line == failing else line[::-1] for line in each), ""]


def test_a_missing_or_broken_ray_is_one_message(
    in_this_process, tiny_run, source, tmp_path, monkeypatch, capsys
):
    def does_not_start():
        raise Exception("node timed out")

    arguments = [str(tiny_run), str(source), str(tmp_path / "output")]
    monkeypatch.setattr(sys.modules["ray"], "init", does_not_start)
    assert translate_on_ray.main(arguments) == translate_on_ray.EXIT_INPUT
    assert "translate_on_ray: error: Ray does not start: node timed out" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "ray", None)
    assert translate_on_ray.main(arguments) == translate_on_ray.EXIT_INPUT
    assert "Install it: pip install" in capsys.readouterr().err


def run_and_kill_a_worker(folder, arguments):
    """Runs the script on a cluster of its own, and kills the first worker that translates.

    Returns:
        The exit code, the output, the process id of the worker, and its part as the output names it.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": str(SCRIPT.parents[1]),
        "RAY_ADDRESS": "local",
        "RAY_DEDUP_LOGS": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    command = [sys.executable, str(small_parts(folder)), *map(str, arguments)]
    command += ["--workers", "2", "--cpus", "0.5"]
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    guard = threading.Timer(500, process.kill)  # so that a hang ends
    guard.start()
    killed, part, shown = None, None, []
    for line in process.stdout:
        shown.append(line)
        started = re.search(r"pid=(\d+).*translating (part \d+ of \S+)", line)
        if started and killed is None:
            killed, part = int(started[1]), started[2]
            os.kill(killed, signal.SIGKILL)
    guard.cancel()
    return process.wait(), "".join(shown), killed, part


def test_a_killed_worker_costs_no_line(tiny_run, translator, source, tmp_path):
    pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]'")
    output = tmp_path / "output"
    code, text, killed, part = run_and_kill_a_worker(tmp_path, [tiny_run, source, output])
    assert code == 0, text[-3000:]
    workers = set(re.findall(r"pid=(\d+).*translating part", text))
    assert str(killed) in workers and len(workers) >= 2, text
    assert text.count(f"translating {part}") >= 2, text
    lines = split_lines(source.read_bytes())
    expected = [" ".join(line.splitlines()) for line in translator.translate(lines)]
    assert output.read_text(encoding="utf-8").split("\n") == [*expected, ""]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["output", "source", SCRIPT.name]
