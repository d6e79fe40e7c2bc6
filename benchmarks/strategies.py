"""Measures the cost of each strategy and constraint: milliseconds a step of `generate`, compiled and portable.

usage: strategies.py [--config small] [--task T3] [--rounds 5]
"""

import argparse
import statistics
import time

import harness

from keras_transformer.decoding import (
    Beam,
    DiverseBeam,
    Greedy,
    NoRepeatNgram,
    RepetitionPenalty,
    Sample,
    SuppressTokens,
)

CASES = {
    "Greedy()": (Greedy(), ()),
    "Beam(4)": (Beam(4), ()),
    "DiverseBeam(4)": (DiverseBeam(4), ()),
    "Sample(seed=1)": (Sample(seed=1), ()),
    "Sample(top_k=50, seed=1)": (Sample(top_k=50, seed=1), ()),
    "Sample(top_p=0.9, seed=1)": (Sample(top_p=0.9, seed=1), ()),
    "Greedy(), SuppressTokens": (Greedy(), (SuppressTokens((5, 6)),)),
    "Greedy(), RepetitionPenalty": (Greedy(), (RepetitionPenalty(1.2),)),
    "Greedy(), NoRepeatNgram": (Greedy(), (NoRepeatNgram(3),)),
}


def main():
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="small", choices=("small", "base"))
    parser.add_argument("--task", default="T3", choices=("T2", "T3"))
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()

    own = harness.own_row()
    config, length = own.common.CONFIGS[options.config], own.common.TASKS[options.task]["new"]
    model = own.transformer(config, "float32")
    source = own.common.decode_data(config, options.task)
    samples = {(name, compiled): [] for name in CASES for compiled in (True, False)}

    def milliseconds(name, compiled):
        strategy, constraints = CASES[name]
        start = time.perf_counter()
        found = model.generate(source, strategy, length, compiled, constraints=constraints)
        steps = int(found.lengths.numpy().max())
        return 1000 * (time.perf_counter() - start) / steps

    for case in [*samples, *samples]:  # the first call compiles, the second still settles
        milliseconds(*case)
    for number in range(options.rounds):
        for case in list(samples)[:: -1 if number % 2 else 1]:
            samples[case].append(milliseconds(*case))
    print(f"## {options.config} {options.task}, {len(source)} rows: ms a step (times Greedy)")
    for name in CASES:
        cells = []
        for compiled in (True, False):
            middle = statistics.median(samples[name, compiled])
            least = statistics.median(samples["Greedy()", compiled])
            cells.append(f"{middle:7.2f} ({middle / least:.2f})")
        print(f"| {name:28} | {cells[0]} | {cells[1]} |")


if __name__ == "__main__":
    main()
