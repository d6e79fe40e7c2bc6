"""Runs the shared benchmark harness with this library's rows beside its own.

The harness is not part of this repository. The environment variable `BENCH_DIR` names its folder.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
HARNESS = Path(os.environ.get("BENCH_DIR", HERE.parent.parent / "shared" / "bench"))
OWN_ROW, EXPORT_ROW = (str(HERE / f"peer_{name}.py") for name in ("keras_transformer", "export"))
EXPORTS = ("portable", "int8", "xla")
# CTranslate2 multiplies with MKL, in two threads of MKL's own. On some machines another setting is many times as fast.
CTRANSLATE2 = {"onednn": "CT2_USE_MKL=0", "mkl1": "MKL_NUM_THREADS=1"}


def all_rows(variants):
    """Returns all rows by name, the harness's and this library's: lists of interpreter, script and variant.

    A row of CTranslate2 is there once more for each of its settings, as `ct2-int8-onednn`. The rows of exports in
    TensorFlow's C++ runtime, such as `export-int8`, need `CXX_RUN_DIR`, and minutes to begin: each writes its export.

    Args:
        variants: A dict from the names of this library's rows to variants of `peer_keras_transformer.py`.
    """
    if not (HARNESS / "run.py").exists():
        raise SystemExit(f"The harness is missing: {HARNESS}/run.py. Set BENCH_DIR to its folder.")
    rows = json.loads((HARNESS / "peers.json").read_text())
    for name in [name for name in rows if name.startswith("ct2-")]:
        interpreter, _, variant = rows[name]
        for setting, variable in CTRANSLATE2.items():
            script = str(HERE / "peer_ctranslate2.py")
            rows[f"{name}-{setting}"] = [interpreter, script, f"{variant}:{variable}"]
    own = {name: [sys.executable, OWN_ROW, variant] for name, variant in variants.items()}
    return rows | own | {f"export-{variant}": [sys.executable, EXPORT_ROW, variant] for variant in EXPORTS}


def installed(names, rows):
    """Returns the names whose interpreter is installed, in order, and prints those that are left out."""
    unknown = [name for name in names if name not in rows]
    if unknown:
        raise SystemExit(f"No such row: {', '.join(unknown)}. There are: {', '.join(rows)}.")
    home = Path(os.environ.get("BENCH_HOME", Path.home() / ".cache" / "kt-bench"))
    present = [name for name in names if Path(rows[name][0].format(home=home)).exists()]
    for name in names:
        if name not in present:
            print(f"left out, not installed: {name}", file=sys.stderr)
    return present


def run(config, task, names, rows, *, rounds, reference, output=None):
    """Runs the harness once, which prints a table. The rows take turns, one repetition each.

    Args:
        config: "small" or "base".
        task: A task of the harness, such as "T1".
        names: The rows to run.
        rows: The result of `all_rows`.
        rounds: Repetitions of each row.
        reference: The row that the others are compared with.
        output: File to which JSON lines are appended; the harness's own file when None.

    Returns:
        The harness's exit status.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(rows, file)
        file.flush()
        environment = {
            **os.environ,
            "BENCH_PEERS": file.name,
            "BENCH_DIR": str(HARNESS),
            "PYTHONPATH": str(HERE.parent),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        command = [sys.executable, str(HARNESS / "run.py"), config, task, ",".join(names)]
        command += ["--rounds", str(rounds), "--ref", reference]
        if output:
            command += ["--out", str(Path(output).resolve())]
        return subprocess.run(command, env=environment, check=False).returncode


def own_row():
    """Imports the module of this library's row: the same model and data, without the harness."""
    os.environ["BENCH_DIR"] = str(HARNESS)
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(HERE.parent))
    import peer_keras_transformer

    return peer_keras_transformer
