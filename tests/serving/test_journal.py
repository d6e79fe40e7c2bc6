"""What is left of an output under way goes on, or is refused, and is never lost."""

import json
import os
import resource
import signal
import subprocess
import sys
import types

import keras
import numpy as np
import pytest

# This file is run as a program too. Then the modules of tests/ are not found, such as contracts.py.
from mirrors import Mirror, begun, mirrored, names, resume

from keras_transformer.files import locked
from keras_transformer.serving import journal


@pytest.fixture(scope="module")
def die_in_a_child():
    """`dying`, forked by a process of its own: in this one other tests' threads may hold locks, gRPC's above all."""
    command = [sys.executable, __file__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def die(source, output, moment):
            print(json.dumps([str(source), str(output), moment]), file=process.stdin, flush=True)
            return json.loads(process.stdout.readline())

        yield die
        process.stdin.close()


def dying(source, output, moment):
    """Translates in a child process that kills itself at a moment of its writing; gives its wait status."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    try:
        moments = 0

        def tick():
            nonlocal moments
            moments += 1
            if moments == moment:
                os.kill(os.getpid(), signal.SIGKILL)

        def around(function):
            def ticking(*args, **keywords):
                tick()
                done = function(*args, **keywords)
                tick()
                return done

            return ticking

        def opened(*args, **keywords):
            file = open(*args, **keywords)  # noqa: SIM115
            if "buffering" not in keywords:
                return file

            class Torn:
                fileno, truncate = file.fileno, file.truncate
                __enter__, __exit__ = lambda self: self, lambda self, *error: file.close()

                def write(self, content):
                    file.write(content[: len(content) // 2])
                    tick()
                    return len(content) // 2 + file.write(content[len(content) // 2 :])

            return Torn()

        for name in ("fsync", "replace", "rename", "unlink", "rmdir"):
            setattr(os, name, around(getattr(os, name)))
        journal.open = opened
        resume(source, output)
    except BaseException:
        os._exit(1)
    os._exit(0)


def visible(folder):
    return [name for name in names(folder) if not name.startswith(".")]


@pytest.mark.slow
def test_killed_at_any_moment_of_its_writing_no_line_is_lost_or_repeated(source, tmp_path, die_in_a_child):
    expected = mirrored(source.read_bytes())
    moment, status, resumed = 0, signal.SIGKILL, set()
    while status == signal.SIGKILL:
        moment += 1
        output = tmp_path / f"{moment}" / "output"
        status = die_in_a_child(source, output, moment)
        if status == signal.SIGKILL and visible(output.parent) != ["output"]:
            mirror = Mirror()
            resume(source, output, mirror)
            resumed.add(sum(map(len, mirror.batches)))
        assert output.read_bytes() == expected, moment
        assert visible(output.parent) == ["output"]
        output.unlink()
        resume(source, output)
        assert names(output.parent) == ["output"]  # and nothing that is hidden
    assert status == 0 and moment > 40
    assert resumed == {10, 7, 4, 1, 0}


def test_full_disk_is_an_error_and_loses_nothing(tmp_path):
    source, output = tmp_path / "source", tmp_path / "output"
    source.write_text("".join(f"{i} {'x' * 997}\n" for i in range(30)))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (15_500, before[1]))  # no room in the middle of a window
    try:
        with pytest.raises(OSError) as raised:
            resume(source, output, Mirror(max_source_length=2000), batch_size=4, window=4)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert raised.value.filename == str(tmp_path / "output.partial" / "lines")
    assert (tmp_path / "output.partial" / "lines").stat().st_size == 15_500
    mirror = Mirror(max_source_length=2000)
    resume(source, output, mirror, batch_size=4, window=4)
    assert sum(map(len, mirror.batches)) == 30 - 12
    assert output.read_bytes() == mirrored(source.read_bytes())


def test_an_output_is_never_overwritten(source, tmp_path):
    output = tmp_path / "output"
    output.write_text("mine")
    for options in ({}, {"restart": True}):
        with pytest.raises(ValueError, match=f"`output` must not exist yet.*output='{output}'"):
            resume(source, output, **options)
    assert output.read_text() == "mine" and names(tmp_path) == ["output", "source"]


def test_an_output_that_comes_meanwhile_is_not_overwritten(source, tmp_path):
    output = tmp_path / "output"
    with pytest.raises(ValueError, match="`output` must not exist yet"):
        resume(source, output, Mirror(lambda texts: output.write_text("mine")))
    assert output.read_text() == "mine"
    output.unlink()
    mirror = Mirror()
    resume(source, output, mirror)
    assert mirror.batches == [] and output.read_bytes() == mirrored(source.read_bytes())


def test_an_output_in_the_hands_of_another_process_is_refused(source, tmp_path):
    begun(source, tmp_path / "output")
    with (
        locked(tmp_path / "output.partial"),
        pytest.raises(ValueError, match=r"in use by another process.*output\.partial"),
    ):
        resume(source, tmp_path / "output")


CHANGES = {
    "source_lines: 10, now 11": lambda source: source.write_text(f"{source.read_text()}more\n"),
    "source: [0-9a-f]{64}, now [0-9a-f]{64}.$": lambda source: source.write_text(
        source.read_text().replace("9", "8")
    ),
    "weights: [0-9a-f]{64}, now [0-9a-f]{64}.$": {
        "mirror": {"model": types.SimpleNamespace(get_config=dict, weights=[keras.Variable(np.ones(3))])}
    },
    "strategy: greedy, now beam": {"mirror": {"strategy": "beam"}},
    r"constraints: \[\], now \[1\]": {"mirror": {"constraints": [1]}},
    "max_source_length: 50, now 49": {"mirror": {"max_source_length": 49}},
    "batch_size: 3, now 2": {"batch_size": 2},
    "window: 3, now 6": {"window": 6},
}


@pytest.mark.parametrize("named", CHANGES)
def test_another_job_in_the_same_output_is_refused_unless_it_restarts(source, tmp_path, named):
    begun(source, tmp_path / "output")
    options = CHANGES[named]
    if callable(options):
        options(source)
        options = {}
    options = dict(options)
    described = options.pop("mirror", {})
    before = (tmp_path / "output.partial" / "lines").read_bytes()
    with pytest.raises(
        ValueError, match=f"the lines of another job.*`restart` to begin again.*Changed: {named}"
    ):
        resume(source, tmp_path / "output", Mirror(**described), **options)
    assert (tmp_path / "output.partial" / "lines").read_bytes() == before
    mirror = Mirror(**described)
    resume(source, tmp_path / "output", mirror, restart=True, **options)
    assert sum(map(len, mirror.batches)) == len(source.read_text().splitlines())
    assert (tmp_path / "output").read_bytes() == mirrored(source.read_bytes())


DAMAGE = {
    "": "is not a journal",
    "{": "is not a journal",
    "[]": "is not a journal",
    "\0\0\0\0": "is not a journal",
    "{'format': 1}": "is not a journal",
    "format": "is not a journal.*format 7, not 1",
    "lines": "7 lines in 43 bytes",
    "size": "6 lines in 42 bytes",
    "cut": "`cut` must be an integer at least 0. Received: cut=-1",
    "lost": "6 lines in 43 bytes",
    "none left": "6 lines in 43 bytes",
    "half a line": "6 lines in 45 bytes",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_journal_is_refused_unless_the_job_restarts(source, tmp_path, damage):
    begun(source, tmp_path / "output")
    path = tmp_path / "output.partial" / "journal.json"
    new = {
        "format": ('"format": 1', '"format": 7'),
        "lines": ('"lines": 6', '"lines": 7'),
        "size": ('"size": 43', '"size": 42'),
        "cut": ('"cut": 0', '"cut": -1'),
        "half a line": ('"size": 43', '"size": 45'),
    }
    text, lines = path.read_text(), path.with_name("lines")
    if damage == "lost":
        os.truncate(lines, 40)
    elif damage == "none left":
        lines.unlink()
    else:
        path.write_text(text.replace(*new[damage]) if damage in new else damage)
        assert path.read_text() != text
    if damage == "half a line":
        lines.write_bytes(lines.read_bytes() + b"half")
    with pytest.raises(ValueError, match=f"{DAMAGE[damage]}.*Use `restart` to begin again"):
        resume(source, tmp_path / "output")
    assert not (tmp_path / "output").exists()
    resume(source, tmp_path / "output", restart=True)
    assert (tmp_path / "output").read_bytes() == mirrored(source.read_bytes())


def test_a_folder_of_somebody_else_is_left_alone(source, tmp_path):
    (tmp_path / "output.partial").mkdir()
    (tmp_path / "output.partial" / "mine").write_text("mine")
    for restart in (False, True):
        with pytest.raises(ValueError, match=r"Found: \['mine'\]"):
            resume(source, tmp_path / "output", restart=restart)
    assert names(tmp_path / "output.partial") == [".lock", "mine"]


if __name__ == "__main__":
    for line in sys.stdin:
        print(dying(*json.loads(line)), flush=True)
