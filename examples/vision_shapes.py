"""Trains a Vision Transformer to tell shapes in small, noisy, grey pictures, which NumPy draws.

    python examples/vision_shapes.py --output shapes

It writes a SavedModel that takes pictures and says their labels, and shapes.png: some of the pictures that it never
saw, with what it took them for.
"""

import argparse
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import keras
import numpy as np
import tensorflow as tf

from keras_transformer import plots
from keras_transformer.layers import Encoder
from keras_transformer.models import VisionTransformer
from keras_transformer.schedules import CosineSchedule
from keras_transformer.serving import ImageClassifier
from keras_transformer.training import AdamW

IMAGES, HELD_OUT = 16_000, 1_000
SIZE, PATCH = 28, 4  # pixels
NOISE = 0.15  # standard deviation, where the picture goes from -1 to 1
D_MODEL, LAYERS, HEADS, D_FF, DROPOUT = 64, 3, 4, 128, 0.0
EPOCHS = 7
BATCH_SIZE = 64
LEARNING_RATE = 1e-3
SEED = 1
# How far out a point lies, 1 on the edge: of coordinates that go from -1 to 1.
SHAPES = {
    "circle": lambda x, y: np.hypot(x, y) / 0.9,
    "square": lambda x, y: np.maximum(abs(x), abs(y)) / 0.75,
    "triangle": lambda x, y: np.maximum(y, np.maximum(3**0.5 * x - y, -(3**0.5) * x - y) / 2) / 0.55,
    "cross": lambda x, y: np.maximum(np.maximum(abs(x), abs(y)), 3 * np.minimum(abs(x), abs(y))) / 0.95,
}


def drawn(count, seed):
    """Draws light shapes of different places, sizes, turns and brightness before a dark ground.

    Returns:
        Images, float32 `(count, SIZE, SIZE, 1)`, and the numbers of their shapes, int `(count,)`.
    """
    draw = np.random.default_rng(seed)
    labels = draw.integers(len(SHAPES), size=count)
    radius, angle = draw.uniform(7, 11, count), draw.uniform(-0.4, 0.4, count)
    centre = SIZE / 2 - 0.5 + draw.uniform(-1, 1, (2, count)) * (SIZE / 2 - 1 - radius)
    behind, contrast = draw.uniform(-0.9, -0.3, count), draw.uniform(0.5, 1.1, count)
    rows, columns = np.mgrid[:SIZE, :SIZE]
    images = np.empty((count, SIZE, SIZE))
    for i, shape in enumerate(np.array([*SHAPES.values()])[labels]):
        y, x = (rows - centre[0, i]) / radius[i], (columns - centre[1, i]) / radius[i]
        sin, cos = np.sin(angle[i]), np.cos(angle[i])
        inside = np.clip(0.5 + radius[i] * (1 - shape(cos * x - sin * y, sin * x + cos * y)), 0, 1)
        images[i] = behind[i] + contrast[i] * inside
    images += draw.normal(0, NOISE, images.shape)
    return np.clip(images, -1, 1)[..., None].astype("float32"), labels


def build():
    """A Vision Transformer with a logit for each shape."""
    encoder = Encoder(LAYERS, HEADS, D_FF, dropout=DROPOUT, activation="gelu", normalize_first=True)
    return VisionTransformer(SIZE, PATCH, D_MODEL, encoder, len(SHAPES), channels=1, dropout=DROPOUT)


def train(count, epochs):
    """Trains a model on so many pictures and returns it as an `ImageClassifier`."""
    model = build()
    print(f"{count:,} pictures, {model.count_params():,} parameters", flush=True)
    steps = epochs * -(-count // BATCH_SIZE)
    model.compile(
        AdamW(CosineSchedule(LEARNING_RATE, steps, steps // 10), weight_decay=0.01),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(*drawn(count, SEED), BATCH_SIZE, epochs, verbose=2)
    return ImageClassifier(model, [*SHAPES])


def main(arguments=None):
    """Trains, scores pictures that it never saw, draws some, exports and asks the export."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default="shapes", type=Path, help="new folder for model and picture")
    parser.add_argument("--images", default=IMAGES, type=int, help="number of pictures to train on")
    parser.add_argument("--epochs", default=EPOCHS, type=int, help="passes over the pictures")
    options = parser.parse_args(arguments)
    if options.output.exists():
        parser.error(f"{options.output} exists: name a new folder with --output.")
    keras.utils.set_random_seed(SEED)

    classifier = train(options.images, options.epochs)
    images, labels = drawn(HELD_OUT, SEED + 1)
    names = np.array(classifier.labels)[labels]
    found = np.array([label for label, _ in classifier.classify(images)])
    print(f"{np.mean(found == names):.1%} of {HELD_OUT} new pictures are told right.")
    for name in classifier.labels:
        others = {other: int(np.sum(found[names == name] == other)) for other in classifier.labels}
        print(f"  {name}: {others}")

    version = classifier.export(options.output)
    export = tf.saved_model.load(str(version))  # keep it: a signature alone does not keep its weights alive
    ask = export.signatures["serving_default"]
    answers = ask(image=tf.constant(images[:32]))["label"].numpy()
    assert [answer.decode() for answer in answers] == found[:32].tolist(), "the export must say the same"
    plots.classified_images(images[:32], names[:32], found[:32]).savefig(options.output / "shapes.png")
    print(f"Exported to {version}, which says the same; pictures in {options.output / 'shapes.png'}.")


if __name__ == "__main__":
    main()
