"""Measures what the tests find: small faults at random places of the package, one at a time.

    python benchmarks/mutations.py record reached.jsonl     # the quick tests once, with the lines that each reaches
    python benchmarks/mutations.py run reached.jsonl --output found.jsonl
    python benchmarks/mutations.py run reached.jsonl --output found.jsonl --only survivors --marks ''
    python benchmarks/mutations.py report found.jsonl

`record` needs Python 3.12. `run` makes each fault in a copy of the checkout in the current folder. It runs the tests
that reach the changed line, the quickest module first, until one fails; for a line that no test reaches, such as a
constant, those that reach its file. The faults follow from the seed and the package. `--package FOLDER` chooses them
from the checkout that was recorded, so that the same faults are tried on the tests of two commits.
"""

import argparse
import ast
import collections
import copy
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import tqdm

FOLDERS = (
    "layers",
    "models",
    "decoding",
    "execution",
    "text",
    "data",
    "huggingface",
    "serving",
    "client",
    "runs",
)
SEED = 60
GONE = "its lines are gone"
COMPARISONS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}


def changed(node):
    """Returns a faulty copy of a node, or None for a node of a kind that is left alone."""
    wrong = copy.deepcopy(node)
    if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
        wrong.ops[0] = COMPARISONS[type(node.ops[0])]()
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        wrong.op = OPERATORS[type(node.op)]()
    elif isinstance(node, ast.BoolOp):
        wrong.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        wrong = wrong.operand
    elif isinstance(node, ast.IfExp):
        wrong.test = ast.UnaryOp(ast.Not(), wrong.test)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        wrong.value = not node.value
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        wrong.value = node.value + 1
    else:
        return None
    return wrong


def faults_of(path, text):
    """Yields (line, column, end line, end column, new source) for each fault that a file can get."""
    tree = ast.parse(text)
    # Before Python 3.12 places inside an f-string are those of another text.
    inside = {
        id(node) for each in ast.walk(tree) if isinstance(each, ast.JoinedStr) for node in ast.walk(each)
    }
    for node in ast.walk(tree):
        if id(node) in inside:
            continue
        place = [
            getattr(node, name, None) for name in ("lineno", "col_offset", "end_lineno", "end_col_offset")
        ]
        if None in place:
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield (*place, "pass")  # a call for its effect, such as a check, is left out
        wrong = changed(node)
        if wrong is not None:
            yield (*place, f"({ast.unparse(wrong)})")


def mutated(text, place, new):
    """Returns a text with the part at a place in the sense of `ast` replaced."""
    line, column, end_line, end_column = place
    lines = text.encode().split(b"\n")
    head, tail = lines[line - 1][:column], lines[end_line - 1][end_column:]
    lines[line - 1 : end_line] = [head + new.encode() + tail]
    return b"\n".join(lines).decode()


def is_faulty(text, faulty):
    """Whether a faulty text is Python, and another program."""
    try:
        return ast.dump(ast.parse(faulty)) != ast.dump(ast.parse(text))
    except SyntaxError:
        return False


def faults(package, count, seed):
    """Returns `count` faults, as many of each folder, as dictionaries."""
    chosen = []
    for folder in FOLDERS:
        generator = random.Random(f"{seed} {folder}")
        candidates = []
        for path in sorted((package / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            name = str(path.relative_to(package.parent))
            candidates += [(name, text, fault[:4], fault[4]) for fault in faults_of(path, text)]
        generator.shuffle(candidates)
        of_folder = []
        for name, text, place, new in candidates:
            if len(of_folder) == count // len(FOLDERS):
                break
            if is_faulty(text, mutated(text, place, new)):
                old = "\n".join(text.split("\n")[place[0] - 1 : place[2]])
                of_folder.append({"file": name, "place": place, "old": old, "new": new})
        chosen += of_folder
    return chosen


def moved(fault, text):
    """Returns the place of a fault in the file's text of today, or None where its lines are gone."""
    line, column, end_line, end_column = fault["place"]
    lines, old = text.split("\n"), fault["old"].split("\n")
    starts = [i for i in range(len(lines)) if lines[i : i + len(old)] == old]
    if not starts:
        return None
    start = min(starts, key=lambda i: abs(i - (line - 1)))
    return start + 1, column, start + 1 + end_line - line, end_column


class Reached:
    """The tests that reach each line, and the seconds that each took, as `record` wrote them."""

    def __init__(self, path):
        self.seconds, self.lines = {}, collections.defaultdict(list)
        for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines():
            test, self.seconds[test], reached = json.loads(line)
            for file, number in reached:
                self.lines[f"keras_transformer/{file}", number].append(test)

    def of_file(self, file):
        """Returns the tests that reach any line of a file."""
        return list(
            dict.fromkeys(test for (name, _), tests in self.lines.items() if name == file for test in tests)
        )


def collected(marks):
    """Returns the names of the tests of this checkout that have these marks."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-m", marks]
    environment = {**os.environ, "PYTHONPATH": str(pathlib.Path.cwd())}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return dict.fromkeys(line for line in done.stdout.splitlines() if "::" in line)


def in_order(tests, seconds, folder):
    """Tests module by module: those of the fault's own folder first, then the quickest modules."""
    modules = collections.defaultdict(list)
    for test in tests:
        modules[test.partition("::")[0]].append(test)
    cost = {module: sum(seconds.get(test, 1) for test in names) for module, names in modules.items()}
    near = f"tests/{folder}/"
    order = sorted(modules, key=lambda module: (not module.startswith(near), cost[module]))
    return [test for module in order for test in modules[module]], sum(cost.values())


def run_tests(root, tests, marks, limit):
    """Returns the test that fails first, "" where all pass, or "hangs"."""
    if not tests:
        return ""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as listed:
        listed.write("\n".join(tests))
        listed.flush()
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            "-m",
            marks,
            f"@{listed.name}",
        ]
        environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(
                command,
                cwd=root,
                env=environment,
                capture_output=True,
                text=True,
                timeout=10 * limit,
                # Seconds of the processor: on a machine with other work a test takes longer, and hangs no more often.
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (int(limit), int(limit) + 60)),
            )
        except subprocess.TimeoutExpired:
            return "hangs"
    if done.returncode == -signal.SIGXCPU:
        return "hangs"
    if done.returncode == 0:
        return ""
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    if done.returncode in (4, 5) and not failed:  # wrong arguments, or none of these tests exists
        raise RuntimeError(f"pytest cannot run {tests[:3]} ...: {done.stderr[-500:]}")
    return failed[0].split(" ")[1] if failed else f"exit status {done.returncode}"


def record(arguments):
    """Runs the quick tests once, with the lines that each of them reaches."""
    with tempfile.TemporaryDirectory() as folder:
        plugin = pathlib.Path(folder, "reached_by_tests.py")
        plugin.write_text(PLUGIN)
        environment = {**os.environ, "PYTHONPATH": f"{pathlib.Path.cwd()}:{folder}", "REACHED": folder}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", plugin.stem]
        subprocess.run([*command, "-n", "2", "-m", arguments.marks, *arguments.tests], env=environment)
        with open(arguments.reached, "w", encoding="utf-8") as file:
            for path in sorted(pathlib.Path(folder).glob("*.jsonl")):
                file.write(path.read_text(encoding="utf-8"))


# Python 3.12 and newer report a line to it once a test, so recording takes little time.
PLUGIN = """
import json, os, pathlib, sys, time
import pytest

FOLDER, WORKER = os.environ["REACHED"], os.environ.get("PYTEST_XDIST_WORKER")
PACKAGE = f"{pathlib.Path.cwd()}/keras_transformer/"
monitoring = sys.monitoring
reached = set()

def reach(code, line):
    if code.co_filename.startswith(PACKAGE):
        reached.add((code.co_filename[len(PACKAGE):], line))
    return monitoring.DISABLE

if WORKER:
    monitoring.use_tool_id(monitoring.COVERAGE_ID, "reached by tests")
    monitoring.register_callback(monitoring.COVERAGE_ID, monitoring.events.LINE, reach)
    monitoring.set_events(monitoring.COVERAGE_ID, monitoring.events.LINE)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(item):
        reached.clear()
        monitoring.restart_events()
        start = time.time()
        try:
            return (yield)
        finally:
            with open(f"{FOLDER}/{WORKER}.jsonl", "a") as file:
                print(json.dumps([item.nodeid, round(time.time() - start, 3), sorted(reached)]), file=file)
"""


def run(arguments):
    """Makes each fault in a copy of this checkout and writes down which test finds it."""
    checkout = pathlib.Path.cwd()
    reached, names = Reached(arguments.reached), collected(arguments.marks)
    known = reached.seconds.keys()
    output = pathlib.Path(arguments.output)
    chosen = faults(arguments.package.resolve() / "keras_transformer", arguments.count, arguments.seed)
    before = [json.loads(line) for line in output.read_text().splitlines()] if output.exists() else []
    done = {
        (row["file"], *row["place"])
        for row in before
        if not (arguments.only == "survivors" and not row["by"])
    }
    chosen = [fault for fault in chosen if (fault["file"], *fault["place"]) not in done]
    chosen = [fault for fault in chosen if fault["file"].split("/")[1] in arguments.folders]
    chosen = chosen[arguments.part :: arguments.parts]
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder, "checkout")
        shutil.copytree(
            checkout, root, ignore=shutil.ignore_patterns(".git", ".venv", "_build", "__pycache__")
        )
        for fault in tqdm.tqdm(chosen, unit="fault"):
            path = root / fault["file"]
            text = path.read_text(encoding="utf-8") if path.exists() else ""
            place = moved(fault, text)
            row = {**fault, "by": GONE, "seconds": 0}
            if place is not None:
                part = fault["file"].split("/")[1]
                tests = [test for test in reached.lines[fault["file"], fault["place"][0]] if test in names]
                # Tests that were written or renamed after `record`.
                tests += [test for test in names if test not in known and test.startswith(f"tests/{part}/")]
                if len(tests) == 0:  # a line that is run when the module is imported, or in another process
                    tests = [test for test in reached.of_file(fault["file"]) if test in names]
                tests, cost = in_order(tests, reached.seconds, part)
                path.write_text(mutated(text, place, fault["new"]), encoding="utf-8")
                start = time.time()
                row["by"] = run_tests(root, tests, arguments.marks, limit=120 + 4 * cost)
                row["seconds"] = round(time.time() - start, 1)
                path.write_text(text, encoding="utf-8")
            with output.open("a") as file:
                print(json.dumps(row), file=file, flush=True)


def report(arguments):
    """Prints how many faults were found, and those that survived."""
    rows = {}
    for line in pathlib.Path(arguments.output).read_text().splitlines():
        row = json.loads(line)
        if row["by"] != GONE:
            rows[row["file"], *row["place"]] = row
    for row in rows.values():
        if not row["by"]:
            print(
                f"survived: {row['file']}:{row['place'][0]}: {row['old'].strip()[:90]}  ->  {row['new'][:60]}"
            )
    counts = collections.Counter((row["file"].split("/")[1], bool(row["by"])) for row in rows.values())
    for folder in FOLDERS:
        print(f"{folder:12} {counts[folder, True]:3} of {counts[folder, True] + counts[folder, False]} found")
    print(f"{sum(bool(row['by']) for row in rows.values())} of {len(rows)} faults found")


def main():
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("record", help="run tests with the lines that each reaches")
    command.add_argument("reached", help="JSON Lines, written")
    command.add_argument("tests", nargs="*", help="files or folders of tests; all are the default")
    command.add_argument("--marks", default="not slow", help="pytest's -m")
    command.set_defaults(function=record)
    command = commands.add_parser("run", help="make faults and run the tests that reach them")
    command.add_argument("reached", help="what `record` wrote")
    command.add_argument(
        "--output", required=True, help="JSON Lines; faults that are in it already are left out"
    )
    command.add_argument("--only", choices=["new", "survivors"], default="new")
    command.add_argument(
        "--package", type=pathlib.Path, default=pathlib.Path(), help="checkout that faults are chosen from"
    )
    command.add_argument("--folders", nargs="*", default=FOLDERS, help="folders of the package")
    command.add_argument("--count", type=int, default=120)
    command.add_argument("--seed", type=int, default=SEED)
    command.add_argument("--marks", default="not slow", help="pytest's -m")
    command.add_argument(
        "--part", type=int, default=0, help="which of the parts that run side by side, from 0"
    )
    command.add_argument("--parts", type=int, default=1)
    command.set_defaults(function=run)
    command = commands.add_parser("report", help="print what was found")
    command.add_argument("output")
    command.set_defaults(function=report)
    arguments = parser.parse_args()
    arguments.function(arguments)


if __name__ == "__main__":
    main()
