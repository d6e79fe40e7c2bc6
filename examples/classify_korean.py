"""Trains a classifier of Korean sentences: everyday talk, the end of a love, or love.

    python examples/classify_korean.py
    python examples/classify_korean.py --data ChatbotData.csv --output classifier
    python examples/classify_korean.py --precision int8 --compare

It learns from the columns Q and label of a CSV file. data/talk.csv, the default, has 431 rows and shows that it works;
a file with more is github.com/songys/Chatbot_data (11,823 rows). It exports a SavedModel that takes text and returns
the label with its probability. With --compare, Keras models with this library's encoder, with Keras's attention and
with LSTMs then learn from the same ids.
"""

import argparse
import collections
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import keras
import numpy as np
import tensorflow as tf
from encoders import compare

from keras_transformer.data import hold_out, read_table
from keras_transformer.layers import Embeddings, Encoder, LayerNormalization, LearnedPositions, TokenEmbedding
from keras_transformer.models import ClassificationHead, EncoderModel
from keras_transformer.schedules import CosineSchedule
from keras_transformer.serving import Classifier
from keras_transformer.text import SentencePieceTokenizer, pack
from keras_transformer.training import AdamW

DATA = Path(__file__).with_name("data") / "talk.csv"
NAMES = {"0": "everyday", "1": "break-up", "2": "love"}  # other labels are their own names
HELD_OUT = 0.1  # share of the texts that are scored, and not trained on
VOCAB_SIZE = 4000
MAX_LENGTH = 32  # tokens
D_MODEL, LAYERS, HEADS, D_FF, DROPOUT = 128, 2, 4, 256, 0.3
EPOCHS = 5  # at least, and with few rows as many as make this number of updates
UPDATES = 200
BATCH_SIZE = 64
LEARNING_RATE = 1e-3
SEED = 1
TEXTS = (
    "오늘 점심 뭐 먹지?",
    "헤어진 지 한 달이 지났는데 아직도 생각나",
    "짝사랑하는 그 사람에게 고백해도 될까?",
    "내일 면접인데 너무 떨려",
)


def build(vocab_size, labels):
    """An encoder over subwords with a head for the labels."""
    return EncoderModel(
        Embeddings(
            vocab_size,
            D_MODEL,
            LearnedPositions(MAX_LENGTH),
            norm=LayerNormalization(epsilon=1e-12),
            dropout=DROPOUT,
        ),
        Encoder(LAYERS, HEADS, D_FF, dropout=DROPOUT, activation="gelu", normalize_first=True),
        head=ClassificationHead(len(labels), DROPOUT, labels),
    )


def arrays(tokenizer, labels, rows):
    """Returns the token ids of rows of text and label, and the numbers of their labels."""
    texts, names = zip(*rows, strict=True)
    token_ids = pack(tokenizer, list(texts), max_length=MAX_LENGTH)["token_ids"]
    return token_ids.numpy(), np.array([labels.index(name) for name in names])


def fit(model, x, y, epochs=None, **arguments):
    """Trains a model, and returns it."""
    steps_per_epoch = -(-len(x) // BATCH_SIZE)
    epochs = epochs or max(EPOCHS, -(-UPDATES // steps_per_epoch))
    steps = epochs * steps_per_epoch
    model.compile(
        AdamW(CosineSchedule(LEARNING_RATE, steps, steps // 10), weight_decay=0.05),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(x, y, BATCH_SIZE, epochs, **arguments)
    return model


def train(rows, held_out, epochs=None):
    """Trains a tokenizer and a model on rows of text and label; returns them as a `Classifier`."""
    labels = sorted({label for _, label in rows})
    tokenizer = SentencePieceTokenizer.train([text for text, _ in rows], VOCAB_SIZE)
    x, y = arrays(tokenizer, labels, rows)
    model = build(tokenizer.vocab_size, labels)
    print(
        f"{len(x):,} texts, {tokenizer.vocab_size:,} subwords, {model.count_params():,} parameters",
        flush=True,
    )
    fit(model, x, y, epochs, verbose=2, validation_data=arrays(tokenizer, labels, held_out))
    return Classifier(model, tokenizer)


def compare_encoders(tokenizer, labels, rows, held_out, epochs=None):
    """Trains a functional model with each of the encoders, and prints their accuracies on held-out rows."""

    def trained(encoder):
        ids = keras.Input((None,), dtype="int32")
        x = encoder(TokenEmbedding(tokenizer.vocab_size, D_MODEL, pad_id=tokenizer.pad_id)(ids))
        logits = keras.layers.Dense(len(labels))(keras.layers.GlobalAveragePooling1D()(x))
        return fit(keras.Model(ids, logits), *arrays(tokenizer, labels, rows), epochs, verbose=0)

    x, y = arrays(tokenizer, labels, held_out)
    compare(trained, lambda model: np.mean(model.predict(x, verbose=0).argmax(-1) == y), "accuracy")


def main(arguments=None):
    """Trains, scores what was held out, exports and asks the export."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default=DATA, help="CSV with columns Q and label")
    parser.add_argument("--output", default="classifier", type=Path, help="new folder for the SavedModel")
    parser.add_argument("--epochs", type=int, help="passes over the texts; by default more for few rows")
    parser.add_argument(
        "--precision", default="float32", choices=("float32", "bfloat16", "int8"), help="of the export"
    )
    parser.add_argument("--compare", action="store_true", help="compare with Keras's attention and LSTMs")
    options = parser.parse_args(arguments)
    if options.output.exists():
        parser.error(f"{options.output} exists: name a new folder with --output.")
    try:
        rows = read_table(options.data, "Q", "label")
        rows, held_out = hold_out([(text, NAMES.get(label, label)) for text, label in rows], HELD_OUT)
    except ValueError as error:
        parser.error(f"{error} Name a file with --data, such as that of github.com/songys/Chatbot_data.")
    keras.utils.set_random_seed(SEED)

    classifier = train(rows, held_out, options.epochs)
    texts, names = map(list, zip(*held_out, strict=True))
    hits = [found == name for (found, _), name in zip(classifier.classify(texts), names, strict=True)]
    majority, _ = collections.Counter(label for _, label in rows).most_common(1)[0]
    print(
        f"{len(held_out)} new texts: accuracy {np.mean(hits):.1%}; "
        f"{names.count(majority) / len(names):.1%} are {majority}, the commonest class"
    )
    for label in classifier.labels:
        of_label = [hit for hit, name in zip(hits, names, strict=True) if name == label]
        print(f"  {label}: {np.mean(of_label):.1%} of {len(of_label)}")

    version = classifier.export(options.output, precision=options.precision)
    export = tf.saved_model.load(str(version))  # keep it: a signature alone does not keep its weights alive
    ask = export.signatures["serving_default"]
    answers = ask(text=tf.constant(TEXTS))
    print(f"Exported to {version}, which says:")
    for text, label, p in zip(TEXTS, answers["label"].numpy(), answers["probability"].numpy(), strict=True):
        print(f"  {text}  ->  {label.decode()} ({p:.0%})")
    if options.compare:
        compare_encoders(classifier.tokenizer, classifier.labels, rows, held_out, options.epochs)


if __name__ == "__main__":
    main()
