"""Trains a translator of real Korean, the help texts and interface texts of LibreOffice, and exports it.

    python examples/korean_help.py --data libreoffice-ko-en --output korean_help

The folder of --data has train.ko-en.tsv.gz, val.ko-en.tsv.gz and test.ko-en.tsv.gz: lines of Korean, a tab and English.
Any pairs of this form do. Those of benchmarks/korean_english.md are human translations, aligned by their paragraphs,
from Debian's packages libreoffice-help-ko, libreoffice-help-en-us and libreoffice-l10n-ko (MPL-2.0). Nothing is
downloaded. With `--precision mixed_bfloat16` an epoch takes two and a half minutes on two cores with AVX-512 and
bfloat16; in float32 it takes longer. Run again, the training goes on where it stopped.
"""

import argparse
import dataclasses
import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from keras_transformer import Beam, plots
from keras_transformer.data import read_tsv
from keras_transformer.decoding import NoRepeatNgram
from keras_transformer.runs import Recipe, train
from keras_transformer.training import corpus_scores

PARTS = ("train", "val", "test")
SHOWN = 20  # translations
# benchmarks/korean_english.md says what it gives, and compares others.
RECIPE = Recipe(
    num_layers=3,
    d_model=256,
    d_ff=1024,
    num_heads=4,
    dropout=0.3,
    normalize_first=True,
    vocab_size=6000,
    character_coverage=1.0,  # a syllable that is left out is unknown to the model
    subword_sampling=0.2,
    batch_tokens=2048,
    max_length=100,
    optimizer="muon",
    learning_rate=2e-3,
    warmup_steps=500,
    schedule="cosine",
    weight_decay=0.05,
    epochs=34,
    average_last=3,
)
# Both chosen on the validation pairs.
STRATEGY, CONSTRAINTS = Beam(8, length_penalty=1.4), (NoRepeatNgram(4),)


def read(folder):
    """Returns the pairs of each part; None, and a sentence on stderr, where a file is missing."""
    files = [folder / f"{part}.ko-en.tsv.gz" for part in PARTS]
    missing = [str(file) for file in files if not file.is_file()]
    if missing:
        print(
            f"korean_help: error: --data must have {', '.join(file.name for file in files)}. "
            f"Missing: {', '.join(missing)}. Without them, `make demo` trains on a corpus that it generates.",
            file=sys.stderr,
        )
        return None
    return [read_tsv(file) for file in files]


def main(arguments=None):
    """Trains, scores the test set, shows translations and attention, and exports. Returns 0, or 1 without data."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the pairs")
    parser.add_argument(
        "--output", default="korean_help", type=Path, help="folder for all that the example writes"
    )
    parser.add_argument(
        "--precision",
        default=RECIPE.precision,
        choices=("float32", "mixed_bfloat16"),
        help="number format of the training; mixed_bfloat16 is faster where the processor has it",
    )
    parser.add_argument("--epochs", default=RECIPE.epochs, type=int, help="passes over the training pairs")
    options = parser.parse_args(arguments)
    pairs = read(options.data)
    if pairs is None:
        return 1
    last = min(RECIPE.average_last, options.epochs)
    # Few pairs make few updates: the warm-up ends before them.
    warmup_steps = min(RECIPE.warmup_steps, 1 + options.epochs * len(pairs[0]) // 400)
    recipe = dataclasses.replace(
        RECIPE,
        epochs=options.epochs,
        average_last=last,
        warmup_steps=warmup_steps,
        precision=options.precision,
    )
    translator = train(recipe, pairs[0], options.output / "run", pairs[1])

    translator = translator.copied(strategy=STRATEGY, constraints=CONSTRAINTS)
    sources, references = map(list, zip(*pairs[2], strict=True))
    translations = translator.translate(sources)
    scores = corpus_scores(translations, references)
    print(f"{len(sources):,} sentences of other pages: BLEU {scores['bleu']:.2f}, chrF {scores['chrf']:.2f}")
    for number in range(0, len(sources), -(-len(sources) // SHOWN)):
        print(f"\n{sources[number]}\n  {translations[number]}\n  reference: {references[number]}")
    short = min(sources, key=lambda text: abs(len(text.split()) - 5))
    plots.translation_attention(translator, short).savefig(options.output / "attention.png")
    print(f"\nExported to {translator.export(options.output / 'export')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
