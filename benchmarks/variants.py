"""Table 3 of "Attention Is All You Need" in small: which parts of the model matter, on Multi30k with a fixed budget.

    python benchmarks/variants.py FOLDER --data MULTI30K

Each variant changes one thing of the base model: heads, key size, depth, width, dropout, label smoothing or positions,
as table 3 does; or it leaves out the scaling, the warm-up or the residual connections, or normalises first. All see the
same batches, as often. Scored on the validation set: perplexity of a subword, and BLEU of greedy translations, after
the last epoch. FOLDER keeps the vocabulary and one line for each finished run; the same command goes on after a stop.
Prints a table of the variants whose runs are all done, and draws docs/images/variants.png of them.
"""

import argparse
import json
import os
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from keras import ops

import keras_transformer as kt
from keras_transformer.decoding import Greedy
from keras_transformer.execution import native
from keras_transformer.layers import (
    Decoder,
    DecoderLayer,
    Embeddings,
    Encoder,
    EncoderLayer,
    LearnedPositions,
    MultiHeadAttention,
    PositionalEncoding,
    Residual,
)
from keras_transformer.models import EncoderDecoder
from keras_transformer.schedules import InverseSquareRootSchedule
from keras_transformer.training import Adam, Progress, corpus_scores

BASE = {
    "layers": 2,
    "d_model": 128,
    "heads": 4,
    "key_dim": 32,
    "d_ff": 512,
    "dropout": 0.1,
    "smoothing": 0.1,
    "positions": "sinusoidal",
    "scale": None,
    "warmup": True,
    "skip": True,
    "normalize_first": False,
}
# By the rows of table 3; then what the paper does not leave out.
VARIANTS = {
    "base": {},
    "A: 1 head": {"heads": 1, "key_dim": 128},
    "A: 2 heads": {"heads": 2, "key_dim": 64},
    "A: 16 heads": {"heads": 16, "key_dim": 8},
    "B: keys of 4": {"key_dim": 4},
    "B: keys of 16": {"key_dim": 16},
    "C: 1 layer": {"layers": 1},
    "C: 4 layers": {"layers": 4},
    "C: width 64": {"d_model": 64, "key_dim": 16},
    "C: width 256": {"d_model": 256, "key_dim": 64},
    "C: inner width 128": {"d_ff": 128},
    "C: inner width 1,024": {"d_ff": 1024},
    "D: no dropout": {"dropout": 0.0},
    "D: dropout 0.3": {"dropout": 0.3},
    "D: no label smoothing": {"smoothing": 0.0},
    "D: label smoothing 0.2": {"smoothing": 0.2},
    "E: learned positions": {"positions": "learned"},
    "no positions": {"positions": None},
    "no scaling by 1/√d_k": {"scale": 1.0},
    "no warm-up": {"warmup": False},
    "no residual connections": {"skip": False},
    "pre-norm": {"normalize_first": True},
}
RATE, WARMUP_STEPS, BATCH_TOKENS, MAX_LENGTH, VOCAB = 2e-3, 400, 2500, 128, 4000


class WithoutWarmup(InverseSquareRootSchedule):
    """The same learning rates, but the highest from the first step on."""

    def __call__(self, step):
        return super().__call__(ops.maximum(step, self.warmup_steps))


class WithoutSkip(Residual):
    """What surrounds a sublayer, without the skip connection."""

    def call(self, x, y, training=None):
        return self.norm(self.drop(y, training=training))


class NoSkips:
    """Takes the skip connections out of an encoder or decoder layer."""

    def make_residual(self, name):
        return WithoutSkip(self.dropout, dtype=self.dtype_policy, name=name)


class EncoderLayerWithoutSkips(NoSkips, EncoderLayer):
    """An encoder layer without residual connections."""


class DecoderLayerWithoutSkips(NoSkips, DecoderLayer):
    """A decoder layer without residual connections."""


def model_of(settings, vocab_size, precision):
    """Makes and compiles the model of one variant."""

    def attention(name):
        return MultiHeadAttention(
            settings["heads"], settings["key_dim"], scale=settings["scale"], dtype=precision, name=name
        )

    def stack(stack_class, layer_class, cross):
        layers = []
        for i in range(settings["layers"]):
            parts = {"attention": attention("self_attention")}
            if cross:
                parts["cross_attention"] = attention("cross_attention")
            layers.append(
                layer_class(
                    None,
                    settings["d_ff"],
                    settings["dropout"],
                    normalize_first=settings["normalize_first"],
                    dtype=precision,
                    name=f"layer_{i}",
                    **parts,
                )
            )
        return stack_class(layers, dtype=precision)

    skip = settings["skip"]
    positions = {
        "sinusoidal": PositionalEncoding,
        "learned": lambda dtype: LearnedPositions(512, dtype=dtype),
    }
    make_positions = positions.get(settings["positions"])
    embeddings = Embeddings(
        vocab_size,
        settings["d_model"],
        make_positions and make_positions(dtype=precision),
        scale=settings["d_model"] ** 0.5,
        dropout=settings["dropout"],
        dtype=precision,
    )
    model = EncoderDecoder(
        embeddings,
        stack(Encoder, EncoderLayer if skip else EncoderLayerWithoutSkips, cross=False),
        embeddings,
        stack(Decoder, DecoderLayer if skip else DecoderLayerWithoutSkips, cross=True),
        dtype=precision,
    )
    schedule = (InverseSquareRootSchedule if settings["warmup"] else WithoutWarmup)(RATE, WARMUP_STEPS)
    model.compile(
        Adam(schedule, beta_1=0.9, beta_2=0.98, epsilon=1e-9, global_clipnorm=5.0),
        kt.MaskedCrossentropy(settings["smoothing"]),
        metrics=[kt.Perplexity()],
        jit_compile=native.compiles(None),
    )
    return model


def run(options, name, seed, tokenizer, train, val):
    """Trains one variant, and returns its scores."""
    keras.utils.set_random_seed(seed)
    model = model_of({**BASE, **VARIANTS[name]}, tokenizer.vocab_size, options.precision)
    limits = {"batch_tokens": BATCH_TOKENS, "max_length": MAX_LENGTH}
    batches = kt.data.Batches(train, tokenizer, seed=seed, **limits)
    began = time.perf_counter()
    model.fit(
        batches.dataset(),
        steps_per_epoch=batches.steps,
        epochs=options.epochs,
        callbacks=[Progress(batches.steps, batches.tokens, epochs=options.epochs)],
        shuffle=False,
        verbose=0,
    )
    seconds = time.perf_counter() - began
    val_batches = kt.data.Batches(val, tokenizer, **limits)
    perplexity = model.evaluate(val_batches.dataset(epochs=1), verbose=0, return_dict=True)["perplexity"]
    sources, references = map(list, zip(*val, strict=True))
    translations = kt.serving.Translator(model, tokenizer, strategy=Greedy()).translate(sources)
    return {
        "variant": name,
        "seed": seed,
        "epochs": options.epochs,
        "updates": options.epochs * batches.steps,
        "parameters": model.count_params(),
        "perplexity": round(float(perplexity), 3),
        "bleu": round(corpus_scores(translations, references, tokenize="none")["bleu"], 2),
        "seconds": round(seconds),
    }


def table(results, seeds):
    """Prints the rows of the variants whose runs are all done."""
    print(f"\n| variant | parameters | perplexity, mean of {len(seeds)} (range) | BLEU, mean (range) |")
    print("| --- | --- | --- | --- |")
    for name in VARIANTS:
        found = [results[name, seed] for seed in seeds if (name, seed) in results]
        if len(found) == len(seeds):
            cells = []
            for key, digits in (("perplexity", 2), ("bleu", 1)):
                values = [row[key] for row in found]
                spread = f"{min(values):.{digits}f}-{max(values):.{digits}f}"
                cells.append(f"{np.mean(values):.{digits}f} ({spread})")
            print(f"| {name} | {found[0]['parameters'] / 1e6:.2f} M | {cells[0]} | {cells[1]} |")


def draw(results, seeds, path):
    """Draws the BLEU of each variant beside that of the base model: a point for each seed."""
    import matplotlib.pyplot as plt

    names = [name for name in VARIANTS if all((name, seed) in results for seed in seeds)]
    figure, axes = plt.subplots(figsize=(7.5, 0.8 + 0.26 * len(names)), layout="constrained")
    base = [results["base", seed]["bleu"] for seed in seeds]
    axes.axvspan(min(base), max(base), color="tab:blue", alpha=0.2, label="range of the base model")
    for place, name in enumerate(names):
        values = [results[name, seed]["bleu"] for seed in seeds]
        axes.plot(
            values, [place] * len(values), "o-", color="tab:blue" if name == "base" else "black", markersize=5
        )
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel("BLEU on the validation set, one point for each seed")
    axes.legend(frameon=False, loc="lower left")
    figure.savefig(path, dpi=110)


def main(arguments=None):
    """Runs what is missing, then prints the table and draws the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--data",
        type=Path,
        required=True,
        help="folder with train and val, each .lc.norm.tok.en.gz and .de.gz",
    )
    parser.add_argument(
        "--variants", nargs="*", choices=VARIANTS, default=list(VARIANTS), metavar="NAME", help="which to run"
    )
    parser.add_argument("--seeds", default="1,2")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--precision", default="mixed_bfloat16")
    parser.add_argument(
        "--picture", default=Path(__file__).parents[1] / "docs" / "images" / "variants.png", type=Path
    )
    options = parser.parse_args(arguments)
    seeds = [int(seed) for seed in options.seeds.split(",")]
    options.folder.mkdir(parents=True, exist_ok=True)
    log = options.folder / "results.jsonl"
    done = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    results = {(row["variant"], row["seed"]): row for row in done if row["epochs"] == options.epochs}

    train, val = (
        kt.data.read_parallel(*(options.data / f"{part}.lc.norm.tok.{side}.gz" for side in ("en", "de")))
        for part in ("train", "val")
    )
    vocabulary = options.folder / "vocabulary.model"
    if not vocabulary.exists():
        sentences = [sentence for pair in train for sentence in pair]
        kt.text.SentencePieceTokenizer.train(sentences, VOCAB, model_type="bpe").save(vocabulary)
    tokenizer = kt.text.SentencePieceTokenizer.load(vocabulary)
    for seed in seeds:
        for name in options.variants:
            if (name, seed) not in results:
                results[name, seed] = run(options, name, seed, tokenizer, train, val)
                with open(log, "a") as file:
                    file.write(json.dumps(results[name, seed]) + "\n")
                print(json.dumps(results[name, seed]), flush=True)
                keras.backend.clear_session()
    table(results, seeds)
    if all(("base", seed) in results for seed in seeds):
        draw(results, seeds, options.picture)


if __name__ == "__main__":
    main()
