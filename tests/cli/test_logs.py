"""The log of the command line: text or JSON, from a chosen level on."""

import json
import logging

import pytest

from keras_transformer.cli import main
from keras_transformer.cli.logs import log_to_stderr, progress

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
def versions(tmp_path):
    """A folder with a version, for a command that takes no time."""
    extra = tmp_path / "model" / "1" / "assets.extra"
    extra.mkdir(parents=True)
    (extra.parent / "saved_model.pb").touch()
    (extra / "export.json").write_text('{"batch_sizes": [1], "xla": false}')
    return tmp_path / "model"


def test_a_good_run_is_silent_unless_its_events_are_asked_for(stderr_of, versions):
    assert stderr_of("server-files", versions) == []
    (line,) = stderr_of("server-files", versions, "--log-level", "info")
    assert line.startswith("finished  command=server-files  exit_code=0  seconds=")


def test_json_has_one_object_for_each_event(stderr_of, versions):
    (line,) = stderr_of("server-files", versions, "--log-level", "info", "--log-format", "json")
    event = json.loads(line)
    assert (event["message"], event["level"], event["logger"]) == (
        "finished",
        "info",
        "keras_transformer.cli",
    )
    assert (event["command"], event["exit_code"]) == ("server-files", 0)
    assert event["time"].endswith("+00:00") and event["seconds"] >= 0


@pytest.mark.parametrize("kind", ["text", "json"])
def test_an_error_is_one_line_whatever_it_holds(stderr_of, kind):
    (line,) = stderr_of("server-files", "none\x1b[31m\nhere", "--log-format", kind, code=2)
    assert "\x1b" not in line
    if kind == "json":
        event = json.loads(line)
        assert event["level"] == "error" and "none" in event["message"]
    else:
        assert line.startswith("keras-transformer: error: ")


def test_lines_of_progress_are_shown_unless_a_higher_level_is_asked_for(capsys):
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


def test_an_unknown_level_is_refused(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["server-files", "folder", "--log-level", "loud"])
    assert stop.value.code == 2 and "--log-level" in capsys.readouterr().err
