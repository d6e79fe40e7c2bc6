"""The log of the command line: text or JSON, from a chosen level on."""

import json
import logging
import sys
import types

import pytest
import tqdm

from keras_transformer.cli import commands, main
from keras_transformer.cli.logs import log_to_stderr, progress
from keras_transformer.text import ByteTokenizer

# Python hides these warnings of C++ modules, pytest shows them.
pytestmark = pytest.mark.filterwarnings("ignore:builtin type:DeprecationWarning")


@pytest.fixture
def stderr_of(capsys):
    """Runs a command and returns the lines on standard error."""

    def stderr_of(*arguments, code=0):
        assert main([str(argument) for argument in arguments]) == code
        return capsys.readouterr().err.splitlines()

    return stderr_of


@pytest.fixture
def events_of(stderr_of):
    """Runs a command and returns the events that it logs, a list of dicts."""
    options = "--log-level", "info", "--log-format", "json"
    return lambda *arguments, **code: list(map(json.loads, stderr_of(*arguments, *options, **code)))


@pytest.fixture
def versions(tmp_path):
    """A folder with a version, for a command that takes no time."""
    extra = tmp_path / "model" / "1" / "assets.extra"
    extra.mkdir(parents=True)
    (extra.parent / "saved_model.pb").touch()
    (extra / "export.json").write_text('{"batch_sizes": [1], "xla": false}')
    return tmp_path / "model"


def test_a_good_run_is_silent_unless_its_events_are_asked_for(stderr_of, versions):
    assert stderr_of("server-files", versions) == []
    started, finished = stderr_of("server-files", versions, "--log-level", "info")
    assert started == "started  command=server-files"
    assert finished.startswith("finished  command=server-files  exit_code=0  seconds=")


def test_json_has_one_object_for_each_event(events_of, versions):
    started, finished = events_of("server-files", versions)
    assert (started["message"], started["command"]) == ("started", "server-files")
    assert (finished["message"], finished["level"]) == ("finished", "info")
    assert finished["logger"] == "keras_transformer.cli" and finished["time"].endswith("+00:00")
    assert (finished["command"], finished["exit_code"]) == ("server-files", 0) and finished["seconds"] >= 0


def test_a_command_that_fails_logs_its_exit_code(events_of):
    started, error, finished = events_of("server-files", "none", code=2)
    assert error["level"] == "error" and "none" in error["message"]
    assert started["command"] == finished["command"] == "server-files" and finished["exit_code"] == 2


def test_scores_are_fields_of_an_event(events_of, tmp_path, monkeypatch):
    tokenizers = [ByteTokenizer()] * 2
    copying = types.SimpleNamespace(tokenizers=tokenizers, translate=lambda sentences, *_, **__: sentences)
    monkeypatch.setattr(commands, "_load_servable", lambda *_: copying)
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("a b c d e f\ta b c d e g\n")
    _, scores, _ = events_of("evaluate", tmp_path, "--pairs", pairs)
    assert (scores["message"], scores["folder"], scores["sentences"]) == ("evaluated", str(tmp_path), 1)
    assert round(scores["bleu"], 2) == 75.98 and "version" in scores["chrf_signature"]


def test_json_holds_nothing_but_events(capsys):
    with log_to_stderr() as configure:
        configure("error", "json")
        print("Exception in thread 1:\n  a cause\n", file=sys.stderr)
        for _ in tqdm.tqdm(range(2), "tokenizing"):
            pass
        print("no end of a line", file=sys.stderr, end="")
        progress.info("epoch 1")
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    messages = [event["message"] for event in events]
    assert messages[:2] == ["Exception in thread 1:", "a cause"] and messages[-1] == "no end of a line"
    assert any("tokenizing: 100%" in message for message in messages)
    assert {event["logger"] for event in events} == {"keras_transformer.stderr"}


@pytest.mark.parametrize("kind", ["text", "json"])
def test_an_error_is_one_line_whatever_it_holds(stderr_of, kind):
    (line,) = stderr_of("server-files", "none\x1b[31m\nhere", "--log-format", kind, code=2)
    assert "\x1b" not in line
    if kind == "json":
        event = json.loads(line)
        assert event["level"] == "error" and "none" in event["message"]
    else:
        assert line.startswith("keras-transformer: error: ")


def test_progress_is_shown_up_to_the_level(capsys):
    with log_to_stderr() as configure:
        progress.info("epoch 1")
        logging.getLogger("keras_transformer.serving").info("an event")
        configure("error")
        progress.info("epoch 2")
        progress.error("no memory")
    assert capsys.readouterr().err == "epoch 1\nkeras-transformer: error: no memory\n"


def test_a_command_leaves_no_handler(stderr_of, versions):
    logger = logging.getLogger("keras_transformer")
    before = list(logger.handlers), logger.level, logger.propagate
    stderr_of("server-files", versions, "--log-level", "debug")
    assert (list(logger.handlers), logger.level, logger.propagate) == before
    assert not logging.getLogger("keras_transformer.cli").isEnabledFor(logging.INFO)


def test_an_unknown_level_is_refused(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["server-files", "folder", "--log-level", "loud"])
    assert stop.value.code == 2 and "--log-level" in capsys.readouterr().err
