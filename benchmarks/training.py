"""Compares the training throughput with that of peers, which take turns in one run.

usage: training.py [--config small] [--task T1] [--peers onmt,keras,...] [--rounds 7] [--output FILE.json]

The harness and the peers' rows are not part of this repository; `BENCH_DIR` in the environment names their
folder. A peer that is not installed is named and left out.
"""

import argparse
import sys

import harness

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

    rows = harness.all_rows(VARIANTS)
    wanted = [*options.own.split(","), *filter(None, options.peers.split(","))]
    present = harness.installed(wanted, rows)
    return harness.run(
        options.config,
        options.task,
        present,
        rows,
        rounds=options.rounds,
        reference=present[0],
        output=options.output,
    )


if __name__ == "__main__":
    sys.exit(main())
