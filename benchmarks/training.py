"""Training throughput beside the peers: each takes one repetition in turn, in one run.

usage: training.py [--config small] [--task T1] [--peers onmt,keras,...] [--rounds 7] [--output FILE.json]

The harness and the peers' rows stand outside the project, in `../shared/bench`; `setup.sh` there makes the peers'
environments. A peer that is not installed is named and left out.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
HARNESS = HERE.parent.parent / "shared" / "bench"
OWN_ROW = str(HERE / "peer_keras_transformer.py")
VARIANTS = {
    "ours": "float32",
    "ours-xla": "float32-xla",
    "ours-bf16": "mixed_bfloat16",
    "ours-bf16-xla": "mixed_bfloat16-xla",
}
PEERS = "onmt,keras,keras-jit,hub,torch"


def main():
    """Runs the harness with this library's rows beside the peers'."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="small", choices=("small", "base"))
    parser.add_argument("--task", default="T1", help="T1, T5-128, T5-512 or T5-2048")
    parser.add_argument("--peers", default=PEERS, help="rows of the harness")
    parser.add_argument("--own", default="ours,ours-bf16", help=f"of {', '.join(VARIANTS)}")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", help="JSON lines are appended to this file")
    options = parser.parse_args()
    if not (HARNESS / "run.py").exists():
        raise SystemExit(f"The harness is missing: {HARNESS}/run.py")

    home = Path(os.environ.get("BENCH_HOME", Path.home() / ".cache" / "kt-bench"))
    rows = json.loads((HARNESS / "peers.json").read_text())
    rows |= {name: [sys.executable, OWN_ROW, variant] for name, variant in VARIANTS.items()}
    wanted = [*options.own.split(","), *filter(None, options.peers.split(","))]
    present = [name for name in wanted if Path(rows[name][0].format(home=home)).exists()]
    for name in wanted:
        if name not in present:
            print(f"left out, not installed: {name}", file=sys.stderr)
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
        command = [sys.executable, str(HARNESS / "run.py"), options.config, options.task, ",".join(present)]
        command += ["--rounds", str(options.rounds), "--ref", present[0]]
        if options.output:
            command += ["--out", str(Path(options.output).resolve())]
        return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
