"""Trains a translator for a generated mini-language of Korean and English, exports it, and asks the export.

    python examples/demo.py --output demo

A grammar of polite sentences (-습니다) generates the corpus; the sentences that are scored use
combinations of words that training never saw. Any other Korean, such as "나는 학교에 간다", is outside of the grammar
and gives nonsense. Run again, it goes on where it stopped: a finished training is kept, and the export gets the next
version.
"""

import argparse
import dataclasses
import os
import subprocess
import sys
import time
from pathlib import Path

# Before TensorFlow loads: its notices are not the demo's.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

from keras_transformer.cli.tensorflow_import import import_tensorflow

import_tensorflow()

import korean_corpus

from keras_transformer import plots, schedules
from keras_transformer.data import read_tsv
from keras_transformer.runs import Recipe, read_history, train
from keras_transformer.training import corpus_scores

TRAIN = 12_000  # pairs to train on
VALIDATION = 500  # pairs that choose the best epoch
TEST = 500  # pairs that are scored, and used for nothing else
RECIPE = Recipe(
    num_layers=2,  # the rest of the size is the preset's: d_model 128, 4 heads, d_ff 256
    dropout=0.1,
    normalize_first=True,
    tokenizer="bpe",
    vocab_size=1400,  # the words of the grammar stay whole, so that the pictures of attention show words
    character_coverage=1.0,  # a character that is left out is unknown to the model
    batch_tokens=1024,
    learning_rate=2e-3,
    warmup_steps=300,
    label_smoothing=0.0,  # a sentence of the grammar has one translation
    epochs=8,
)
EXACT_MATCH = 0.95  # the least that counts as success
SENTENCES = (
    "저는 학생입니다.",
    "그녀는 어제 도서관에서 공부했습니다.",
    "우리는 내일 영화를 볼 것입니다.",
    "당신은 커피를 마시지 않습니까?",
    "제 친구는 아침에 학교에 갑니다.",
)
ASK_EXPORT = Path(__file__).with_name("ask_export.py")


def corpus(folder):
    """Writes the corpus and returns the pairs to train on, to validate with and to score."""
    train_path, held_out_path = korean_corpus.write(folder, train=TRAIN, held_out=TEST + VALIDATION)
    held_out = read_tsv(held_out_path)
    return read_tsv(train_path), held_out[TEST:], held_out[:TEST]


def evaluate(translator, pairs):
    """Returns the share of exact translations, with BLEU and chrF, in a dict."""
    sources, references = map(list, zip(*pairs, strict=True))
    translations = translator.translate(sources)
    exact = sum(map(str.__eq__, translations, references)) / len(pairs)
    return {"exact": exact, **corpus_scores(translations, references)}


def export(translator, folder):
    """Writes the next version of the export and returns its path."""
    versions = [int(path.name) for path in Path(folder).glob("*") if path.name.isdecimal()]
    return translator.export(folder, version=max(versions, default=0) + 1)


def ask(version, sentences):
    """Translates in a new process that can import TensorFlow but, run with -I, nothing of this folder."""
    command = [sys.executable, "-I", str(ASK_EXPORT), str(version), *sentences]
    done = subprocess.run(command, capture_output=True, encoding="utf-8")
    if done.returncode:
        raise RuntimeError(f"{ASK_EXPORT.name} failed: {done.stderr.strip()}")
    return [line.split("\t")[0] for line in done.stdout.splitlines()]


def draw(translator, run, folder):
    """Draws the pictures of a run into a folder."""
    folder.mkdir(exist_ok=True)
    widths = {f"d_model {d_model}": schedules.WarmupSchedule(d_model) for d_model in (128, 256, 512, 1024)}
    figures = {
        "training_curves": plots.training_curves(read_history(run)),
        "positions": plots.positions(),
        "schedule": plots.schedule(widths),
        "attention": plots.translation_attention(translator, SENTENCES[0]),
    }
    for name, figure in figures.items():
        figure.savefig(folder / f"{name}.png")
    # A page that carries the model: its reader types a sentence and sees it translated, offline.
    plots.attention(translator, list(SENTENCES)).save(folder / "attention.html")


def main(arguments=None):
    """Runs the demo; returns 0, or 1 if the translations are not good enough."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default="demo", type=Path, help="folder for all that the demo writes")
    parser.add_argument("--epochs", default=RECIPE.epochs, type=int, help="passes over the training pairs")
    options = parser.parse_args(arguments)
    output, run = options.output, options.output / "run"
    began = time.perf_counter()

    train_pairs, val_pairs, test_pairs = corpus(output / "corpus")
    words = {word for korean, _ in train_pairs for word in korean.split()}
    print(
        f"A grammar generates {len(train_pairs):,} pairs of {len(words):,} Korean words, such as "
        f'"{train_pairs[0][0]}", "{train_pairs[0][1]}". The model learns this mini-language, not Korean.',
        flush=True,
    )
    recipe = dataclasses.replace(RECIPE, epochs=options.epochs)
    translator = train(recipe, train_pairs, run, val_pairs)
    print(f"Trained after {time.perf_counter() - began:.0f} s.", flush=True)

    scores = evaluate(translator, test_pairs)
    print(
        f"{len(test_pairs)} sentences whose combinations of words are new: {scores['exact']:.1%} exact, "
        f"BLEU {scores['bleu']:.1f}, chrF {scores['chrf']:.1f}",
        flush=True,
    )
    if scores["exact"] < EXACT_MATCH:
        print(
            f"demo: error: {scores['exact']:.1%} exact is less than {EXACT_MATCH:.0%}; "
            f"go on training with --epochs {2 * options.epochs}.",
            file=sys.stderr,
        )
        return 1

    print("Writes the export, loads it and checks its answers ...", flush=True)
    version = export(translator, output / "export")
    print("A process with TensorFlow, tensorflow-text and the export, nothing else, translates:", flush=True)
    for sentence, translation in zip(SENTENCES, ask(version, SENTENCES), strict=True):
        print(f"  {sentence}  ->  {translation}")
    print(
        "Other Korean gives nonsense, because the grammar does not have it. To translate a real language, train on "
        "files of your own: keras-transformer train --pairs FILE.tsv --output RUN"
    )
    print("Draws the pictures ...", flush=True)
    draw(translator, run, output / "pictures")

    print(f"corpus {output / 'corpus'}, run {run}, export {version}, pictures {output / 'pictures'}")
    print(f"{time.perf_counter() - began:.0f} s in all.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
