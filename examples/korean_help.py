"""Trains a translator of real Korean, the help texts and interface texts of LibreOffice, and exports it.

    python examples/korean_help.py --data libreoffice-ko-en --output korean_help

The folder of --data has train.ko-en.tsv.gz, val.ko-en.tsv.gz and test.ko-en.tsv.gz: lines of Korean, a tab and English.
Any pairs of this form do. `korean_help_data.py` makes them from Debian's packages of LibreOffice (MPL-2.0). Nothing is
downloaded. The model first learns to translate from Korean, and then in both directions. That takes three hours on
two cores with AVX-512 and bfloat16 and `--precision mixed_bfloat16`; in float32 it takes longer. Run again with
the same options, the training goes on where it stopped.
"""

import argparse
import dataclasses
import itertools
import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import demo
import numpy as np
import tqdm

from keras_transformer import Beam, plots
from keras_transformer.data import read_tsv
from keras_transformer.decoding import NoRepeatNgram
from keras_transformer.runs import Recipe, train
from keras_transformer.training import corpus_scores

PARTS = ("train", "val", "test")
SHOWN = 20  # translations
# benchmarks/korean_english.md says what it gives, and compares others.
TRAINING = {
    "dropout": 0.3,
    "subword_sampling": 0.2,
    "batch_tokens": 2048,
    "max_length": 100,
    "optimizer": "muon",
    "learning_rate": 2e-3,
    "schedule": "cosine",
    "weight_decay": 0.05,
    "average_last": 3,
}
ONE_WAY = Recipe(
    **TRAINING,
    num_layers=3,
    d_model=256,
    d_ff=1024,
    num_heads=4,
    normalize_first=True,
    vocab_size=6000,
    character_coverage=1.0,  # a syllable that is left out is unknown to the model
    warmup_steps=500,
    epochs=34,
)
BOTH_WAYS = Recipe(**TRAINING, warmup_steps=200, epochs=16)
# Chosen on the validation pairs; the weights of the reranking are chosen there anew after each training.
WIDTH = 8
STRATEGY, CONSTRAINTS = Beam(WIDTH, length_penalty=1.4, n_best=WIDTH), (NoRepeatNgram(4),)
BACKWARD_WEIGHTS, WORD_BONUSES = (0.2, 0.35, 0.5, 0.7, 1.0), (0.2, 0.4, 0.6, 0.8, 1.0, 1.3)
ROWS = 32  # sentences in a batch


def read(folder):
    """Returns the pairs of each part; None, and a sentence on stderr, where a file is missing."""
    files = [folder / f"{part}.ko-en.tsv.gz" for part in PARTS]
    missing = [str(file) for file in files if not file.is_file()]
    if missing:
        print(
            f"korean_help: error: --data must have {', '.join(file.name for file in files)}. "
            f"Missing: {', '.join(missing)}. korean_help_data.py makes them. Without them, `make demo` trains on a "
            "corpus that it generates.",
            file=sys.stderr,
        )
        return None
    return [read_tsv(file) for file in files]


def train_for(recipe, epochs, pairs, folder, precision):
    """Trains, or goes on, for a number of epochs. Returns the translator."""
    recipe = dataclasses.replace(
        recipe,
        epochs=epochs,
        average_last=min(recipe.average_last, epochs),
        # Few pairs make few updates: the warm-up ends before them.
        warmup_steps=min(recipe.warmup_steps, 1 + epochs * len(pairs[0]) // 400),
        precision=precision,
    )
    return train(recipe, pairs[0], folder, pairs[1])


def candidates(translator, sources):
    """Finds the translations of each sentence that the beam ends with, best first, and what reranks them.

    Args:
        translator: A `Translator` of both directions, whose strategy has `WIDTH` results.
        sources: List of str.

    Returns:
        The translations, str `(sources, WIDTH)`. And of each: the log probability of the translation, that of the
        source when the translation is translated back, and the number of words, float `(sources, WIDTH)`.
    """
    texts = np.full((len(sources), WIDTH), None)
    forward, backward, words = np.zeros((3, *texts.shape))
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    quiet = not sys.stderr.isatty()  # a line each minute, as a log file needs it
    for start in tqdm.trange(
        0, len(order), ROWS, desc="translating", leave=quiet, mininterval=60 if quiet else 0.1
    ):
        rows = order[start : start + ROWS]
        batch = [sources[i] for i in rows]
        answer = translator.answer(batch, signature="n_best")
        given = answer["translations"].reshape(-1)
        back = translator.answer(given, np.repeat(batch, WIDTH), signature="score")
        forward[rows], backward[rows] = answer["scores"], back["score"].reshape(-1, WIDTH)
        texts[rows] = np.array([text.decode("utf-8", "replace") for text in given], object).reshape(-1, WIDTH)
    words[:] = np.vectorize(lambda text: len(text.split()))(texts)
    return texts, forward, backward, words


def rerank(found, backward_weight, word_bonus):
    """Takes the best translation of each sentence by both directions of the model.

    The score is log p(translation | source) + `backward_weight` * log p(source | translation) + `word_bonus` for each
    word (Li and Jurafsky, 2016, "Mutual Information and Diverse Decoding Improve Neural Machine Translation").

    Args:
        found: What `candidates` returns.
        backward_weight: A float.
        word_bonus: A float.

    Returns:
        A list of str.
    """
    texts, forward, backward, words = found
    best = (forward + backward_weight * backward + word_bonus * words).argmax(axis=1)
    return texts[np.arange(len(texts)), best].tolist()


def main(arguments=None):
    """Trains, scores the test set, shows translations and attention, and exports. Returns 0, or 1 without data."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the pairs")
    parser.add_argument(
        "--output", default="korean_help", type=Path, help="folder for all that the example writes"
    )
    parser.add_argument(
        "--precision",
        default=ONE_WAY.precision,
        choices=("float32", "mixed_bfloat16"),
        help="number format of the training; mixed_bfloat16 is faster where the processor has it",
    )
    parser.add_argument(
        "--epochs",
        nargs=2,
        default=(ONE_WAY.epochs, BOTH_WAYS.epochs),
        type=int,
        metavar=("FROM_KOREAN", "BOTH_WAYS"),
        help="passes over the training pairs, from Korean alone and in both directions",
    )
    options = parser.parse_args(arguments)
    pairs = read(options.data)
    if pairs is None:
        return 1
    first, both = (options.output / name for name in ("one_way", "both_ways"))
    train_for(ONE_WAY, options.epochs[0], pairs[:2], first, options.precision)
    both_ways = [[*part, *(pair[::-1] for pair in part)] for part in pairs[:2]]
    recipe = dataclasses.replace(BOTH_WAYS, init_from=str(first))
    translator = train_for(recipe, options.epochs[1], both_ways, both, options.precision)

    translator = translator.changed(strategy=STRATEGY, constraints=CONSTRAINTS)
    (val_sources, val_references), (sources, references) = (
        map(list, zip(*part, strict=True)) for part in pairs[1:]
    )
    held_out = candidates(translator, val_sources)
    weights = max(
        itertools.product(BACKWARD_WEIGHTS, WORD_BONUSES),
        key=lambda pair: corpus_scores(rerank(held_out, *pair), val_references)["bleu"],
    )
    found = candidates(translator, sources)
    translations = rerank(found, *weights)
    for name, texts in (("the beam's best", found[0][:, 0].tolist()), ("reranked", translations)):
        scores = corpus_scores(texts, references)
        print(
            f"{len(sources):,} sentences of other pages, {name}: BLEU {scores['bleu']:.2f}, chrF {scores['chrf']:.2f}"
        )
    print("Reranked by both directions, with weights {} and {} from the validation pairs:".format(*weights))
    for number in range(0, len(sources), -(-len(sources) // SHOWN)):
        print(f"\n{sources[number]}\n  {translations[number]}\n  reference: {references[number]}")
    short = min(sources, key=lambda text: abs(len(text.split()) - 5))
    plots.translation_attention(translator, short).savefig(options.output / "attention.png")
    print(
        f"\nExported to {demo.export(translator, options.output / 'export')}. It answers with the beam's best."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
