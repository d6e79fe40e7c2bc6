"""Trains one corpus with many recipes, and scores each on the validation set.

    KERAS_BACKEND=jax python benchmarks/recipes.py FOLDER koen --data DATA --workers 6
    python benchmarks/recipes.py FOLDER koen --data DATA --save sampling --run RUN

DATA is the folder of the corpora: Korean-English software help (`koen`), and Multi30k. Each recipe has the fields of
`keras_transformer.runs.Recipe`, which are the options of `keras-transformer train`. So the command line can train any
of them on two cores too. FOLDER keeps of each finished training its line in results.jsonl, its vocabulary, the mean
weights of its last epochs, and its translations of the validation set. The same command goes on after a stop. `--save`
makes the translator of one training, which `keras-transformer evaluate`, `translate` and `export` read. An accelerator
compiles a training once for each shape of a batch, so there are few shapes.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import time
import unicodedata
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

SHAPES = 3  # of a training's batches
ROWS = 128  # that are translated at once
# SentencePiece's normalisation joins the letters of Hangul again, so "jamo" writes letters that it leaves alone.
JAMO, YI = range(0x1100, 0x1200), 0xA000


@dataclasses.dataclass
class Corpus:
    """Files, the recipe that all trainings begin from, and what each training changes.

    Args:
        files: The files of the training pairs, and those of the validation pairs: one of both sides, or one for each.
        recipe: Fields of a `Recipe`.
        changes: A dict from the name of a training to fields of a `Recipe`; "source" is not one of them: "jamo" writes
            the source in letters, and "reverse" translates in the other direction.
        tokenize: The name of sacreBLEU's tokenizer.
        width: Number of hypotheses of the beam.
    """

    files: tuple
    recipe: dict
    changes: dict
    tokenize: str
    width: int = 4


SMALL = {
    "num_layers": 3,
    "d_model": 256,
    "d_ff": 1024,
    "num_heads": 4,
    "vocab_size": 6000,
    "dropout": 0.3,
    "batch_tokens": 4096,
    "max_length": 100,
    "epochs": 40,
    "warmup_steps": 1000,
    "learning_rate": 1e-3,
    "average_last": 5,
}
PRE_NORM = {"normalize_first": True}
SAMPLED = {"subword_sampling": 0.2, "epochs": 60, "average_last": 10}
MUON = {
    "optimizer": "muon",
    "learning_rate": 2e-3,
    "warmup_steps": 500,
    "schedule": "cosine",
    "weight_decay": 0.05,
    "batch_tokens": 2048,
}
KOEN = {
    "base": {},
    "bpe": {"tokenizer": "bpe"},
    "vocabulary 3000": {"vocab_size": 3000},
    "vocabulary 12000": {"vocab_size": 12000},
    "all characters": {"character_coverage": 1.0},
    "jamo": {"source": "jamo"},
    "dropout 0.2": {"dropout": 0.2},
    "dropout 0.4": {"dropout": 0.4},
    "sampling": {**SAMPLED, "epochs": 100},
    "pre-norm": PRE_NORM,
    "pre-norm, sampling": {**PRE_NORM, **SAMPLED},
    "pre-norm, sampling, epochs 100": {**PRE_NORM, **SAMPLED, "epochs": 100},
    "pre-norm, sampling 0.1": {**PRE_NORM, **SAMPLED, "subword_sampling": 0.1},
    "pre-norm, sampling, R-Drop": {**PRE_NORM, **SAMPLED, "r_drop": 5.0},
    "pre-norm, sampling, layers 6": {**PRE_NORM, **SAMPLED, "num_layers": 6},
    "pre-norm, sampling, all characters": {**PRE_NORM, **SAMPLED, "character_coverage": 1.0},
    "pre-norm, sampling, Muon": {
        **PRE_NORM,
        **SAMPLED,
        **MUON,
        "character_coverage": 1.0,
        "precision": "mixed_bfloat16",
        "epochs": 34,
        "average_last": 3,
    },
    "pre-norm, sampling, smoothing 0.2": {**PRE_NORM, **SAMPLED, "label_smoothing": 0.2},
    "pre-norm, bpe": {**PRE_NORM, "tokenizer": "bpe"},
    "pre-norm, bpe, dropout 0.2": {**PRE_NORM, "tokenizer": "bpe", "dropout": 0.2},
    "pre-norm, bpe, R-Drop": {**PRE_NORM, "tokenizer": "bpe", "r_drop": 5.0},
    "pre-norm, bpe, sampling": {**PRE_NORM, **SAMPLED, "tokenizer": "bpe", "subword_sampling": 0.1},
    "English to Korean": {"source": "reverse", **PRE_NORM, **SAMPLED},
}
TINY = {
    "preset": "tiny",
    "tokenizer": "bpe",
    "vocab_size": 9712,
    "character_coverage": 1.0,
    "batch_tokens": 9300,
    "learning_rate": 5e-3,
    "warmup_steps": 2000,
    "adam_epsilon": 1e-8,
    "clip_norm": 25.0,
    "precision": "mixed_bfloat16",
    "epochs": 110,
    "average_last": 10,
}
MULTI30K = {
    "base": {},
    "R-Drop": {"r_drop": 5.0, "epochs": 80},
    "sampling": {"subword_sampling": 0.05},
    "cosine": {"schedule": "cosine"},
    "accumulation": {"accumulation": 2, "epochs": 160, "warmup_steps": 1500},
    "moving average": {"ema": 0.998, "average_last": 1},
}
LARGE = {
    "num_layers": 3,
    "d_model": 256,
    "d_ff": 1024,
    "num_heads": 4,
    "vocab_size": 8000,
    "dropout": 0.2,
    "batch_tokens": 2500,
    "learning_rate": 1e-3,
    "warmup_steps": 1000,
    "precision": "mixed_bfloat16",
    "epochs": 24,
    "average_last": 5,
}
LARGE_CHANGES = {
    "base": {},
    "pre-norm": PRE_NORM,
    "pre-norm, sampling": {**PRE_NORM, **SAMPLED, "dropout": 0.3},
    "pre-norm, R-Drop": {**PRE_NORM, "dropout": 0.3, "r_drop": 5.0, "batch_tokens": 5000, "epochs": 40},
}
CORPORA = {
    "koen": Corpus(
        (("libreoffice-ko-en/train.ko-en.tsv.gz",), ("libreoffice-ko-en/val.ko-en.tsv.gz",)),
        SMALL,
        KOEN,
        "13a",
    ),
    "multi30k": Corpus(
        tuple(
            tuple(f"multi30k/{part}.lc.norm.tok.{side}.gz" for side in ("en", "de"))
            for part in ("train", "val")
        ),
        TINY,
        MULTI30K,
        "none",
        5,
    ),
    "multi30k-large": Corpus(
        tuple(tuple(f"multi30k/{part}.{side}.gz" for side in ("en", "de")) for part in ("train", "val")),
        LARGE,
        LARGE_CHANGES,
        "13a",
    ),
}


def jamo(text):
    """Writes each Hangul syllable as two or three letters: its consonant, its vowel and the consonant at its end."""
    letters = unicodedata.normalize("NFD", text)
    return "".join(chr(YI + ord(x) - JAMO[0]) if ord(x) in JAMO else x for x in letters)


def read_pairs(corpus, part, data, source):
    """Returns the training pairs (`part` 0) or the validation pairs (1) of a corpus."""
    import keras_transformer as kt

    files = [data / name for name in corpus.files[part]]
    read = kt.data.read_parallel if len(files) == 2 else kt.data.read_tsv
    pairs = [tuple(pair) for pair in read(*files)]
    if source == "reverse":
        return [(target, source) for source, target in pairs]
    return [(jamo(source), target) for source, target in pairs] if source == "jamo" else pairs


def recipe_of(corpus, name, seed):
    """Returns the `Recipe` of a training and what its source is."""
    from keras_transformer.runs import Recipe

    fields = {**corpus.recipe, **corpus.changes[name], "seed": seed}
    source = fields.pop("source", None)
    return Recipe(**fields), source


def batches_of(pairs, tokenizers, recipe, **options):
    """Returns the `Batches` of pairs."""
    import keras_transformer as kt

    special = {name: getattr(tokenizers[1], name) for name in ("pad_id", "bos_id", "eos_id")}
    return kt.data.Batches(
        pairs,
        tokenizers,
        batch_tokens=recipe.batch_tokens,
        max_length=recipe.max_length,
        seed=recipe.seed,
        frame=kt.data.Frame(**special),
        **options,
    )


def make_mean(last, epochs):
    """Makes a callback that gives the model the mean weights of the last epochs when the training ends."""
    import keras
    import numpy as np

    class Mean(keras.callbacks.Callback):
        total = None

        def on_epoch_end(self, epoch, logs=None):
            if epoch >= epochs - last:
                weights = [weight.astype("float64") for weight in self.model.get_weights()]
                self.total = weights if self.total is None else list(map(np.add, self.total, weights))

        def on_train_end(self, logs=None):
            if last > 1:
                self.model.set_weights([weight / last for weight in self.total])

    return Mean()


def translate(model, tokenizers, sources, strategy):
    """Translates sentences with a model of any backend. All batches have one shape."""
    import numpy as np

    ids = [row[:255] for row in tokenizers[0].tokenize(sources).to_list()]
    longest = max(map(len, ids)) + 1
    rows = np.full((len(ids) + -len(ids) % ROWS, longest), model.pad_id, "int32")
    for row, tokens in zip(rows, ids, strict=False):
        row[: len(tokens) + 1] = [*tokens, model.eos_id]
    outputs = []
    for start in range(0, len(rows), ROWS):
        found = model.generate(rows[start : start + ROWS], strategy, 2 * longest)
        tokens, lengths = np.asarray(found.tokens)[:, 0], np.asarray(found.lengths)[:, 0]
        outputs += [row[:length].tolist() for row, length in zip(tokens, lengths, strict=True)]
    outputs = [[token for token in row if token != model.eos_id] for row in outputs[: len(ids)]]
    return texts_of(tokenizers[1], outputs)


def texts_of(tokenizer, rows):
    """Returns the texts of rows of ids."""
    longest = max(map(len, rows))
    padded = [row + [tokenizer.pad_id] * (longest - len(row)) for row in rows]
    return [text.decode() for text in tokenizer.detokenize(padded).numpy()]


def vocabularies(folder, recipe, pairs, source):
    """Returns the tokenizers of a recipe, made once for all trainings that share them."""
    from keras_transformer.files import replaced
    from keras_transformer.runs.tokenizers import make_tokenizers
    from keras_transformer.text import SentencePieceTokenizer

    kind = recipe.tokenizer or "unigram"
    coverage, separate = recipe.character_coverage, bool(recipe.separate_vocabularies)
    stem = f"{kind}-{recipe.vocab_size}-{coverage or 'usual'}-{'separate' if separate else 'joint'}-{source or 'text'}"
    paths = [folder / f"{stem}-{side}.model" for side in (("source", "target") if separate else ("both",))]
    if not all(path.exists() for path in paths):
        made = make_tokenizers(recipe, pairs)
        for path, tokenizer in zip(paths, made, strict=False):
            with replaced(path) as temporary:  # other trainings look for it
                tokenizer.save(temporary)
    loaded = [SentencePieceTokenizer.load(path) for path in paths]
    return loaded[0], loaded[-1]


def stem_of(name, seed):
    """Returns how the files of a training begin."""
    return f"{name.replace(' ', '_').replace(',', '')}-{seed}"


def run(folder, corpus, name, seed, data):
    """Trains with one recipe, and keeps everything that its translator and its row need."""
    import keras
    from keras.callbacks import LambdaCallback

    from keras_transformer.decoding import Beam
    from keras_transformer.runs.model import make_model
    from keras_transformer.training import corpus_scores

    recipe, source = recipe_of(corpus, name, seed)
    pairs, val_pairs = (read_pairs(corpus, part, data, source) for part in (0, 1))
    tokenizers = vocabularies(folder, recipe, pairs, source)
    batches = batches_of(pairs, tokenizers, recipe, num_buckets=SHAPES, sampling=recipe.subword_sampling)
    val_batches = batches_of(val_pairs, tokenizers, recipe, num_buckets=1)
    keras.utils.set_random_seed(recipe.seed)
    model = make_model(recipe, tokenizers, batches.steps)
    began = time.perf_counter()
    history = []

    def validate(epoch, logs):
        if epoch % 5 == 4 or epoch == recipe.epochs - 1:
            scores = model.evaluate(
                val_batches.arrays(0), steps=val_batches.steps, verbose=0, return_dict=True
            )
            history.append([epoch + 1, round(float(logs["loss"]), 3), round(float(scores["perplexity"]), 3)])
            print(name, seed, *history[-1], f"{time.perf_counter() - began:.0f} s", flush=True)

    model.fit(
        (batch for epoch in range(recipe.epochs) for batch in batches.arrays(epoch)),
        steps_per_epoch=batches.steps,
        epochs=recipe.epochs,
        callbacks=[
            LambdaCallback(on_epoch_end=validate),
            make_mean(recipe.average_last, recipe.epochs),
        ],
        shuffle=False,
        verbose=0,
    )
    seconds = time.perf_counter() - began
    perplexity = model.evaluate(val_batches.arrays(0), steps=val_batches.steps, verbose=0, return_dict=True)
    sources, references = map(list, zip(*val_pairs, strict=True))
    translations = translate(model, tokenizers, sources, Beam(corpus.width, length_penalty=1.0))
    scores = corpus_scores(translations, references, tokenize=corpus.tokenize)
    model.save_weights(folder / f"{stem_of(name, seed)}.weights.h5")
    (folder / f"{stem_of(name, seed)}.val.txt").write_text(
        "".join(f"{text}\n" for text in translations), encoding="utf-8"
    )
    row = {
        "training": name,
        "seed": seed,
        "bleu": round(scores["bleu"], 2),
        "chrf": round(scores["chrf"], 2),
        "perplexity": round(float(perplexity["perplexity"]), 3),
        "parameters": model.count_params(),
        "updates": recipe.epochs * batches.steps // recipe.accumulation,
        "seconds": round(seconds),
        "history": history,
    }
    with open(folder / "results.jsonl", "a") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row), flush=True)


def save(folder, corpus, name, seed, data, target):
    """Makes the translator of a training, with TensorFlow."""
    from keras_transformer.runs.model import make_model
    from keras_transformer.serving import Translator

    recipe, source = recipe_of(corpus, name, seed)
    tokenizers = vocabularies(folder, recipe, read_pairs(corpus, 0, data, source), source)
    model = make_model(recipe, tokenizers, 1)
    model.build_from_config({})
    model.load_weights(folder / f"{stem_of(name, seed)}.weights.h5")
    Translator(model, *tokenizers, max_source_length=256).save(target)


def start_all(options, jobs):
    """Runs the trainings, some beside each other, each in a process of its own."""
    common = [
        sys.executable,
        sys.argv[0],
        str(options.folder),
        options.corpus,
        "--data",
        str(options.data),
    ]
    running, failed = {}, []
    while jobs or running:
        while jobs and len(running) < options.workers:
            name, seed = jobs.pop(0)
            command = [*common, "--one", name, "--seeds", str(seed)]
            with open(options.folder / "log.txt", "a") as log:
                running[name, seed] = subprocess.Popen(command, stdout=log, stderr=log)
        for job, process in list(running.items()):
            if process.poll() is not None:
                del running[job]
                failed += [job] if process.returncode else []
        time.sleep(0.5)
    return failed


def main():
    """Runs what is missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("corpus", choices=CORPORA)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=1, help="trainings beside each other")
    parser.add_argument(
        "--only", nargs="*", metavar="NAME", help="trainings, in this order; all if not given"
    )
    parser.add_argument("--seeds", default="1", help="such as 1,2,3")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument(
        "--save", metavar="NAME", help="make the translator of this training and --run its folder"
    )
    parser.add_argument("--run", type=Path)
    options = parser.parse_args()
    corpus, seeds = CORPORA[options.corpus], [int(seed) for seed in options.seeds.split(",")]
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.one:
        run(options.folder, corpus, options.one, seeds[0], options.data)
        return
    if options.save:
        save(options.folder, corpus, options.save, seeds[0], options.data, options.run)
        return
    results = options.folder / "results.jsonl"
    lines = results.read_text().splitlines() if results.exists() else []
    done = {(row["training"], row["seed"]) for row in map(json.loads, lines)}
    names = options.only or list(corpus.changes)
    jobs = [(name, seed) for name in names for seed in seeds if (name, seed) not in done]
    failed = start_all(options, jobs)
    if failed:
        sys.exit(f"failed, see {options.folder / 'log.txt'}: {failed}")


if __name__ == "__main__":
    main()
