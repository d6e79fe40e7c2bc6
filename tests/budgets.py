"""Prints how many seconds the quick tests of each folder took, and the budget of each folder.

A budget is what the tests of a folder take on two cores with AVX2 alone, without fixtures of the session. On a slower
machine all budgets grow by the median of seconds and budgets. Machines are noisy: a folder is over its budget if it
takes half as long again. Its name is written to the file that the variable OVER_BUDGET names, and `.ci/run` fails if
the folder is over its budget again in a second run.

It also adds the result of a run to the file that the variable TEST_RESULTS names: `make test` shows those of its parts.
"""

import collections
import os
import pathlib
import statistics
import time

import pytest

# Seconds of each folder of tests. CONTRIBUTING.md tells how to spend them.
BUDGETS = {
    "tests": 60, "cli": 45, "client": 40, "data": 10, "decoding": 30, "examples": 15, "huggingface": 70,
    "layers": 100, "models": 115, "plots": 20, "runs": 60, "serving": 140, "text": 30, "training": 22,
}  # fmt: skip
SHARED = "seconds of shared fixtures"
ALLOWED = 1.5


def folder_of(nodeid):
    """Returns `layers` for a test in tests/layers, and `tests` for one that is in no folder."""
    parts = pathlib.PurePosixPath(nodeid.partition("::")[0]).parts
    return parts[1] if len(parts) > 2 else "tests"


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef, request):
    """Notes what a fixture of the whole session takes: the first test that uses it is not to blame."""
    start = time.perf_counter()
    value = yield
    if fixturedef.scope == "session":
        request.node.config.stash.setdefault(SESSION, []).append(time.perf_counter() - start)
    return value


SESSION = pytest.StashKey()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item):
    """Adds the seconds of the session's fixtures to the properties of the test that made them."""
    seconds = item.config.stash.setdefault(SESSION, [])
    seconds.clear()
    try:
        return (yield)
    finally:
        if seconds:
            item.user_properties.append((SHARED, sum(seconds)))


class Spent:
    """Seconds and tests of each folder."""

    def __init__(self):
        self.seconds, self.tests = collections.Counter(), collections.Counter()

    def pytest_runtest_logreport(self, report):
        folder, seconds = folder_of(report.nodeid), report.duration
        if report.when == "setup":
            shared = sum(value for name, value in report.user_properties if name == SHARED)
            self.seconds["shared fixtures"] += shared
            seconds -= min(shared, seconds)
        self.seconds[folder] += seconds
        self.tests[folder] += report.when == "call"

    def pytest_terminal_summary(self, terminalreporter):
        terminalreporter.section("seconds and tests of each folder")
        ratios = {name: self.seconds[name] / budget for name, budget in BUDGETS.items() if self.tests[name]}
        slowness = max(1.0, statistics.median(ratios.values() or [1.0]))
        over = [name for name, ratio in ratios.items() if ratio > ALLOWED * slowness]
        for name, seconds in sorted(self.seconds.items(), key=lambda item: -item[1]):
            budget = f"of {BUDGETS[name]:3}" if name in BUDGETS else ""
            note = "over its budget" if name in over else ""
            terminalreporter.write_line(
                f"{name:16} {seconds:6.1f} s {budget:6} {self.tests[name]:5} tests {note}"
            )
        total = f"{sum(self.seconds.values()):6.1f} s of {sum(BUDGETS.values())}"
        terminalreporter.write_line(f"{'all':16} {total} {sum(self.tests.values()):5} tests")
        if "OVER_BUDGET" in os.environ:
            pathlib.Path(os.environ["OVER_BUDGET"]).write_text("".join(f"{name}\n" for name in over))


class Result:
    """The numbers of tests that passed, failed, ..., as one line of a file."""

    def pytest_terminal_summary(self, terminalreporter):
        counts = ", ".join(text for text, _ in terminalreporter.build_summary_stats_line()[0])
        with open(os.environ["TEST_RESULTS"], "a") as file:
            file.write(f"{os.environ.get('KERAS_BACKEND', 'tensorflow')}: {counts}\n")


def pytest_configure(config):
    is_worker = hasattr(config, "workerinput")  # a process of pytest-xdist
    is_quick = config.option.markexpr == "not slow" and "KERAS_BACKEND" not in os.environ
    if "TEST_RESULTS" in os.environ and not is_worker:
        config.pluginmanager.register(Result())
    if is_quick and not is_worker:
        config.pluginmanager.register(Spent())
