"""The log of the command line: text or JSON, from a chosen level on."""

import json
import logging

import pytest

from keras_transformer.cli import main
from keras_transformer.cli.logs import log_to_stderr, progress


def stderr_of(capsys, *arguments, code=0):
    assert main([str(argument) for argument in arguments]) == code
    return capsys.readouterr().err.splitlines()


def test_a_good_run_is_silent_unless_its_events_are_asked_for(capsys, exported):
    assert stderr_of(capsys, "verify", exported) == []
    lines = stderr_of(capsys, "verify", exported, "--log-level", "info")
    assert lines[0] == f"verified  folder={exported}"
    assert lines[1].startswith("finished  command=verify  exit_code=0  seconds=")


def test_json_has_one_object_for_each_event(capsys, exported):
    events = list(
        map(json.loads, stderr_of(capsys, "verify", exported, "--log-level", "info", "--log-format", "json"))
    )
    assert [event["message"] for event in events] == ["verified", "finished"]
    assert events[0]["folder"] == str(exported) and events[0]["level"] == "info"
    assert events[0]["logger"] == "keras_transformer.serving.verify"
    assert events[0]["time"].endswith("+00:00") and events[1]["exit_code"] == 0


@pytest.mark.parametrize("kind", ["text", "json"])
def test_an_error_is_one_line_whatever_it_holds(capsys, kind):
    (line,) = stderr_of(capsys, "verify", "none\x1b[31m\nhere", "--log-format", kind, code=2)
    assert "\x1b" not in line
    if kind == "json":
        event = json.loads(line)
        assert event["level"] == "error" and "`folder` must hold" in event["message"]
    else:
        assert line.startswith("keras-transformer: error: `folder` must hold")


def test_lines_of_progress_are_shown_unless_a_higher_level_is_asked_for(capsys):
    with log_to_stderr() as configure:
        progress.info("epoch 1")
        logging.getLogger("keras_transformer.serving").info("an event")
        configure("error")
        progress.info("epoch 2")
        progress.error("no memory")
    assert capsys.readouterr().err == "epoch 1\nkeras-transformer: error: no memory\n"


def test_a_command_leaves_no_handler(capsys, exported):
    logger = logging.getLogger("keras_transformer")
    before = list(logger.handlers), logger.level, logger.propagate
    stderr_of(capsys, "verify", exported, "--log-level", "debug")
    assert (list(logger.handlers), logger.level, logger.propagate) == before


def test_an_unknown_level_is_refused(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["verify", "folder", "--log-level", "loud"])
    assert stop.value.code == 2 and "--log-level" in capsys.readouterr().err
