"""Changes valid folders, files, answers and requests at random, and reports each that is not answered or refused.

A change ends well in an answer, or in an error of the documented classes with a short and printable message. Anything
else is a fault: another class, a signal, more memory or time than the limits, a message of more than 2,000 characters.

    python benchmarks/fuzz.py --seconds 60
    python benchmarks/fuzz.py --kinds answers models --first 1000 --count 1   # repeats a fault
    python benchmarks/fuzz.py --guided --kinds tokenizers --seconds 600  # Atheris looks for new lines of the package

Each child process has limits of memory and time. After a fault another child goes on with the next number.
"""

import argparse
import collections
import json
import logging
import os
import pathlib
import random
import resource
import subprocess
import sys
import tempfile
import time
import traceback
import warnings

from fuzz_cases import KINDS, Cases

ROOT = pathlib.Path(__file__).resolve().parents[1]
# The memory is what a case may take above a child that has loaded everything, the seconds are of the CPU.
MEMORY, SECONDS, LONGEST = 2**31, 10, 2000
HUNG_SECONDS = 600  # by the clock: other work on the machine costs a case time too
# To remove a folder of a disk takes as long as some cases.
FOLDERS = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
ALLOWED = (ValueError, OSError)


def child(root, kinds, first, count, report):
    """Runs cases from a number on, and writes the result of each into a file."""
    cases = Cases(root)
    cases.prepare(kinds)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    for kind in kinds:
        # The first case of a kind loads native code and starts threads, which stay.
        outcome_of(cases, kind, random.Random(0))
    usage = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (usage + MEMORY, usage + MEMORY))
    with open(report, "a") as file:
        for number in range(first, first + count):
            # A case without end is stopped by a signal.
            last = int(time.process_time()) + 3 * SECONDS
            resource.setrlimit(resource.RLIMIT_CPU, (last, resource.RLIM_INFINITY))
            kind = kinds[number % len(kinds)]
            outcome = outcome_of(cases, kind, random.Random(number))
            print(json.dumps({"number": number, "kind": kind, "outcome": outcome}), file=file, flush=True)


def outcome_of(cases, kind, draw):
    """Runs a case. Returns `read`, `refused`, or what is wrong."""
    outcome, begun = "read", time.process_time()
    with tempfile.TemporaryDirectory(dir=FOLDERS) as folder:
        try:
            getattr(cases, kind)(draw, pathlib.Path(folder))
        except ALLOWED as error:
            message = str(error)
            outcome = "refused"
            named = error.args and isinstance(error, OSError) and error.filename is not None
            if len(message) > LONGEST or not (message.isprintable() or named) or not message:
                outcome = f"message of {len(message)} characters: {message[:300]!r}"
            elif isinstance(error, UnicodeError):
                outcome = f"raw {error!r:.300}"
        except BaseException as error:
            steps = traceback.extract_tb(error.__traceback__)
            place = [step for step in steps if "keras_transformer" in step.filename][-1:] or steps[-1:]
            where = f"{place[0].filename[-50:]}:{place[0].lineno}"
            outcome = f"raw {type(error).__name__} {str(error)[:200]!r} at {where}"
    seconds = time.process_time() - begun
    return f"took {seconds:.0f} CPU seconds, then {outcome}" if seconds > SECONDS else outcome


class Guided(random.Random):
    """Draws what the bytes of a fuzzer say, so that it can look for cases that reach new lines of the package."""

    def __init__(self, provider):
        super().__init__(0)
        self.provider = provider

    def random(self):
        return self.provider.ConsumeIntInRange(0, 2**32 - 1) / 2**32

    def getrandbits(self, k):
        return self.provider.ConsumeIntInRange(0, 2**k - 1)

    def randbytes(self, n):
        return self.provider.ConsumeBytes(n).ljust(n, b"\0")


def guide(root, kinds, seconds):
    """Lets Atheris draw the cases for some seconds. It ends at the first fault."""
    import atheris

    cases = Cases(root)
    with atheris.instrument_imports(include=["keras_transformer"]):
        cases.make()
        cases.prepare(kinds)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")

    def one(data):
        provider = atheris.FuzzedDataProvider(data)
        kind = kinds[provider.ConsumeIntInRange(0, len(kinds) - 1)]
        outcome = outcome_of(cases, kind, Guided(provider))
        if outcome not in ("read", "refused"):
            raise RuntimeError(f"{kind}: {outcome}")

    options = [f"-max_total_time={seconds:.0f}", "-rss_limit_mb=8192", f"-timeout={SECONDS}"]
    options += ["-max_len=4096", "-len_control=0"]
    atheris.Setup([sys.argv[0], *options, f"-artifact_prefix={root}/"], one)
    atheris.Fuzz()


def fuzz(kinds, seconds, first=0, count=10**9):
    """Runs cases for some seconds, or some cases. Returns the number of each outcome, and the faults."""
    end, number, counts, faults = time.monotonic() + seconds, first, collections.Counter(), []
    with tempfile.TemporaryDirectory(dir=FOLDERS) as root:
        quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
        # The package of this checkout, whichever is installed.
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, **quiet, "PYTHONPATH": path, "FUZZ_ROOT": root}
        command = [sys.executable, __file__, "--kinds", *kinds]
        subprocess.run([*command, "--make"], env=environment, check=True)
        while time.monotonic() < end and number < first + count:
            report, errors = pathlib.Path(root, f"{number}.jsonl"), pathlib.Path(root, "errors")
            report.touch()
            options = [
                "--first",
                str(number),
                "--count",
                str(first + count - number),
                "--report",
                str(report),
            ]
            with (
                open(errors, "wb") as stderr,
                subprocess.Popen([*command, *options], env=environment, stderr=stderr) as process,
            ):
                hung = False
                while process.poll() is None and time.monotonic() < end and not hung:
                    time.sleep(0.2)
                    hung = time.time() - report.stat().st_mtime > HUNG_SECONDS
                finished = process.poll()
                process.kill()
            for line in report.read_text().split("\n")[:-1]:
                case = json.loads(line)
                number, is_good = case["number"] + 1, case["outcome"] in ("read", "refused")
                counts[case["kind"], case["outcome"] if is_good else "fault"] += 1
                faults += [] if is_good else [case]
            if hung or finished:
                outcome = f"ended with {finished}: {errors.read_text(errors='replace')[-300:]}"
                outcome = "hung" if hung else outcome
                faults.append({"number": number, "kind": kinds[number % len(kinds)], "outcome": outcome})
                number += 1
    return counts, faults


def main():
    """Reads the options, and prints the faults."""
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=10**9)
    guided = "let Atheris draw the cases (pip install atheris)"
    parser.add_argument("--guided", action="store_true", help=guided)
    parser.add_argument("--make", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--report", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    root, kinds, numbers = os.environ.get("FUZZ_ROOT"), arguments.kinds, (arguments.first, arguments.count)
    if arguments.make:
        return Cases(root).make()
    if arguments.report:
        return child(root, kinds, *numbers, arguments.report)
    if arguments.guided:
        with tempfile.TemporaryDirectory(dir=FOLDERS) as root:
            return guide(root, kinds, arguments.seconds)
    counts, faults = fuzz(kinds, arguments.seconds, *numbers)
    for (kind, outcome), count in sorted(counts.items()):
        print(f"{kind:14} {outcome:8} {count:7}")
    for fault in faults:
        print(json.dumps(fault))
    print(f"{sum(counts.values())} cases, {len(faults)} faults")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
