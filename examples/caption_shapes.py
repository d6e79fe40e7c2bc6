"""Trains a model to say what is in a picture: two shapes, their colours, and where one is beside the other.

    python examples/caption_shapes.py

NumPy draws the pictures. The script trains for minutes on two cores, scores pictures that the model never saw, writes a
SavedModel that takes JPEG and PNG files and answers with text, asks it in a process of its own, and draws what the
model looks at for each word.
"""

import argparse
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import keras
import numpy as np
import sources

import keras_transformer as kt

PICTURES, HELD_OUT = 12_000, 500
SIZE = 32  # pixels
WIDTH = 64
EPOCHS = 6
LONGEST = 16  # tokens of a sentence
NOISE = 12  # standard deviation, of 256 shades
# How far out a point lies, 1 on the edge: of coordinates that go from -1 to 1.
SHAPES = {
    "circle": np.hypot,
    "square": lambda x, y: np.maximum(abs(x), abs(y)) / 0.85,
    "triangle": lambda x, y: np.maximum(y, np.maximum(3**0.5 * x - y, -(3**0.5) * x - y) / 2) / 0.6,
    "cross": lambda x, y: np.maximum(np.maximum(abs(x), abs(y)), 3 * np.minimum(abs(x), abs(y))),
}
COLOURS = {"red": (220, 50, 50), "green": (50, 180, 60), "blue": (60, 90, 230), "yellow": (235, 215, 60)}
RELATIONS = ("left of", "above")


def drawn(count, seed):
    """Draws pictures of two shapes of different places, sizes and shades.

    Returns:
        Pictures, uint8 `(count, SIZE, SIZE, 3)`, and a sentence about each, such as "a red circle left of a blue
        square": a list of str.
    """
    draw = np.random.default_rng(seed)
    images = np.empty((count, SIZE, SIZE, 3))
    images[:] = draw.uniform(0, 60, (count, 1, 1, 1))
    rows, columns = np.mgrid[:SIZE, :SIZE]
    sentences = []
    for image in images:
        relation = draw.integers(2)
        things, middle = [], draw.uniform(10, SIZE - 10)
        for place in (0, 1):
            radius = draw.uniform(5, 7)
            # The first shape is in the left or in the upper half.
            along = draw.uniform(radius, SIZE / 2 - radius) + place * SIZE / 2
            # On a diagonal both relations would be true.
            across = middle + draw.uniform(-3, 3)
            row, column = (across, along) if relation == 0 else (along, across)
            shape, colour = draw.choice([*SHAPES]), draw.choice([*COLOURS])
            far = SHAPES[shape]((columns - column) / radius, (rows - row) / radius)
            inside = np.clip(0.5 + radius * (1 - far), 0, 1)[..., None]
            image += inside * (np.array(COLOURS[colour]) * draw.uniform(0.8, 1.0) - image)
            things.append(f"a {colour} {shape}")
        sentences.append(f" {RELATIONS[relation]} ".join(things))
    images += draw.normal(0, NOISE, images.shape)
    return np.clip(images, 0, 255).astype("uint8"), sentences


def build(tokenizer):
    """Convolutions, of which two strides make a fourth of each side, an encoder over their output, and a decoder."""
    source = keras.Sequential(
        [
            keras.Input((SIZE, SIZE, 3)),
            keras.layers.Conv2D(WIDTH // 2, 5, 2, padding="same", activation="gelu"),
            keras.layers.Conv2D(WIDTH, 3, 2, padding="same", activation="gelu"),
            keras.layers.Reshape((-1, WIDTH)),
            kt.layers.LearnedPositions((SIZE // 4) ** 2),
        ]
    )
    return sources.build(source, tokenizer, WIDTH)


def main(arguments=None):
    """Trains, scores, exports, asks the export and draws what the model looks at."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default="captions", type=Path, help="new folder for model and picture")
    parser.add_argument("--pictures", default=PICTURES, type=int, help="number of pictures to train on")
    parser.add_argument("--epochs", default=EPOCHS, type=int, help="passes over the pictures")
    options = parser.parse_args(arguments)
    if options.output.exists():
        parser.error(f"{options.output} exists: name a new folder with --output.")
    keras.utils.set_random_seed(sources.SEED)

    images, sentences = drawn(options.pictures, sources.SEED)
    words = sorted({word for sentence in sentences for word in sentence.split()})
    tokenizer = kt.text.WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words])
    preprocessing = kt.layers.ImagePreprocessing(SIZE, mean=0.3, deviation=0.3)
    model = build(tokenizer)
    print(f"{len(images):,} pictures, {model.count_params():,} parameters", flush=True)
    sources.train(model, tokenizer, preprocessing(images), sentences, options.epochs)

    writer = kt.serving.ImageWriter(
        model, tokenizer, kt.decoding.Beam(4), LONGEST, preprocessing=preprocessing
    )
    images, sentences = drawn(HELD_OUT, sources.SEED + 1)
    found = writer.write(images)
    print(f"{sources.exact(found, sentences):.1%} of {HELD_OUT} new pictures are told without a fault.")

    version = writer.export(options.output)
    shown = max(range(HELD_OUT), key=lambda i: len(set(sentences[i].split())))
    prepared = preprocessing(images[shown : shown + 1])
    tokens, weights = sources.alignment(model, tokenizer, prepared, writer.strategy, LONGEST)
    kt.plots.image_attention(images[shown], weights, tokens).savefig(options.output / "attention.png")
    paths = [options.output / f"picture_{i}.png" for i in range(4)]
    for path, image in zip(paths, images, strict=False):
        keras.utils.save_img(path, image, scale=False)
    sources.check_export(version, "serving_default", "image", paths, found[:4])
    print(f"Exported to {version}, which says the same; its attention in {options.output / 'attention.png'}.")


if __name__ == "__main__":
    main()
