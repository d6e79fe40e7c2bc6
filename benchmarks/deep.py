"""What deep models wait for: building, the first `generate`, a second length, the first step of `fit`, and steps after.

    python benchmarks/deep.py [--layers 2,8,24] [--compare PATH] [--kind decoder|transformer] [--peer] [--rounds 2]

The decoder is a small Llama of width 128: 8 heads, 2 of keys and values, rotary positions, gated feed-forward networks,
RMS norms, 8,000 words. `transformer` is the paper's base model. Each run is a process of its own; the checkouts and
KerasHub's Llama of that size (`--peer`) take turns. A row is the median of CPU seconds.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
ROOT = Path(__file__).resolve().parents[1]
VOCAB, D_MODEL, HEADS, KEY_VALUE_HEADS, D_FF = 8000, 128, 8, 2, 344
BATCH, LENGTH, STEPS = 8, 32, 10
PROMPTS, NEW_TOKENS = (20, 27, 33), 24


def main():
    """Measures, and prints a table for each number of layers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", default="2,8,24", help="of the decoder")
    parser.add_argument("--kind", default="decoder", choices=("decoder", "transformer"))
    parser.add_argument("--compare", type=Path, help="a checkout of another commit")
    parser.add_argument("--peer", action="store_true", help="measure KerasHub's Llama too")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        return work(options.work, int(options.layers))
    runs = {"here": (options.kind, ROOT)}
    if options.compare:
        runs["compared"] = (options.kind, options.compare.resolve())
    if options.peer:
        runs["KerasHub"] = ("kerashub", ROOT)
    for layers in options.layers.split(",") if options.kind == "decoder" else ["6"]:
        found = {name: {} for name in runs}
        for _ in range(options.rounds):
            for name, (kind, checkout) in runs.items():
                command = [sys.executable, __file__, "--work", kind, "--layers", layers]
                environment = {**os.environ, "PYTHONPATH": str(checkout)}
                lines = subprocess.run(
                    command, env=environment, stdout=subprocess.PIPE, text=True, check=True
                ).stdout
                for line in lines.splitlines():
                    row, value = line.split("\t")
                    found[name].setdefault(row, []).append(float(value))
        print(f"\n| {layers} layers | {' | '.join(found)} |")
        print("| --- |" + " --- |" * len(found))
        for row in found["here"]:
            medians = [statistics.median(found[name].get(row, [float("nan")])) for name in found]
            print(f"| {row} |", " | ".join(f"{value:.2f}" for value in medians), "|", flush=True)


def own_cpu():
    """Returns the CPU seconds of this process."""
    return sum(resource.getrusage(resource.RUSAGE_SELF)[:2])


def work(kind, layers):
    """Builds, generates and trains one model, and prints a row for each."""
    import keras
    import numpy as np

    import keras_transformer  # noqa: F401 (its import is not measured)

    if kind == "kerashub":
        import keras_hub  # noqa: F401
    keras.utils.set_random_seed(0)
    ids = np.random.default_rng(0).integers(4, VOCAB, (BATCH, max(PROMPTS)))
    last = own_cpu()

    def row(name):
        nonlocal last
        print(name, f"{own_cpu() - last:.3f}", sep="\t", flush=True)
        last = own_cpu()

    make, generate, inputs = {"decoder": decoder, "transformer": transformer, "kerashub": kerashub}[kind]
    model = make(layers)
    row("build")
    for name, length in zip(("first", "second", "third"), PROMPTS, strict=True):
        generate(model, ids[:1, :length])
        row(f"`generate`, {name} length")
    for _ in range(STEPS):
        generate(model, ids[:1, : PROMPTS[-1]])
    row(f"`generate`, {STEPS} times")
    model.compile(
        keras.optimizers.Adam(1e-4),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    x, y = inputs(ids[:, :LENGTH]), ids[:, :LENGTH]
    model.fit(x, y, batch_size=BATCH, verbose=0)
    row("`fit`, first step")
    more = keras.tree.map_structure(lambda ids: np.tile(ids, (STEPS, 1)), (x, y))
    model.fit(*more, batch_size=BATCH, verbose=0)
    row(f"`fit`, {STEPS} steps more")


def _decoder(layers):
    import keras_transformer as kt

    def layer():
        attention = kt.layers.MultiHeadAttention(
            HEADS,
            D_MODEL // HEADS,
            num_key_value_heads=KEY_VALUE_HEADS,
            use_bias=False,
            positions=kt.layers.RotaryPositions(),
        )
        feed_forward = kt.layers.GatedFeedForward(D_FF, use_bias=False)
        return kt.layers.DecoderLayer(
            attention=attention, feed_forward=feed_forward, dropout=0.0, normalize_first=True, norm="rms"
        )

    embeddings = kt.layers.Embeddings(VOCAB, D_MODEL, dropout=0.0)
    model = kt.models.LanguageModel(embeddings, kt.layers.Decoder([layer() for _ in range(layers)]))
    model.build((None, None))
    return model


def _transformer(layers):
    import keras_transformer as kt

    model = kt.models.Transformer.from_preset("base", VOCAB)
    model.build({"source": (None, None), "target": (None, None)})
    return model


def _kerashub(layers):
    import keras_hub

    backbone = keras_hub.models.LlamaBackbone(VOCAB, layers, HEADS, D_MODEL, D_FF, KEY_VALUE_HEADS)
    return keras_hub.models.LlamaCausalLM(backbone, preprocessor=None)


def _own_generate(model, prompts):
    model.generate(prompts, max_length=NEW_TOKENS, jit_compile=False)


def _kerashub_generate(model, prompts):
    import numpy as np

    if model.sampler is None or not getattr(model, "ready", False):
        model.compile(sampler="greedy", jit_compile=False)
        model.ready = True
    length = prompts.shape[1] + NEW_TOKENS
    padded = np.zeros((len(prompts), length), "int32")
    padded[:, : prompts.shape[1]] = prompts
    model.generate({"token_ids": padded, "padding_mask": padded > 0}, stop_token_ids=None)


decoder = (_decoder, _own_generate, lambda ids: ids)
transformer = (_transformer, _own_generate, lambda ids: {"source": ids, "target": ids})
kerashub = (_kerashub, _kerashub_generate, lambda ids: {"token_ids": ids, "padding_mask": ids > 0})


if __name__ == "__main__":
    main()
