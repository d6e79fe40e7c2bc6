"""Shared by the examples that write about pictures and recordings: a model for any source, its training, a server."""

import json
import subprocess
import sys

import keras

import keras_transformer as kt

LAYERS, HEADS, DROPOUT = 2, 4, 0.1
BATCH_SIZE = 64
LEARNING_RATE = 2e-3
SEED = 1
# What a server runs: the SavedModel in TensorFlow, without this library.
SERVER = """
import json, sys
import tensorflow as tf
import tensorflow_text  # the operations of tokenizers, which a server has
folder, signature, key, *paths = sys.argv[1:]
model = tf.saved_model.load(folder)
ask = model.signatures[signature]
files = tf.constant([open(path, "rb").read() for path in paths])
# Every other input is empty: what the export was made with.
inputs = {name: tf.fill(tf.shape(files), "") for name in ask.structured_input_signature[1]}
answers = ask(**{**inputs, key: files})
assert not any(answers["error"].numpy())
assert "keras_transformer" not in sys.modules
print(json.dumps([text.decode() for text in answers["text"].numpy()]))
"""


def build(source, tokenizer, width):
    """An encoder over what `source` reads, and a decoder that writes the ids of a tokenizer."""
    stack = {"dropout": DROPOUT, "normalize_first": True}
    target = kt.layers.Embeddings(
        tokenizer.vocab_size, width, kt.PositionalEncoding(), scale=width**0.5, dropout=DROPOUT
    )
    encoder, decoder = (kind(LAYERS, HEADS, 4 * width, **stack) for kind in (kt.Encoder, kt.layers.Decoder))
    return kt.models.EncoderDecoder(source, encoder, target, decoder)


def train(model, tokenizer, inputs, texts, epochs):
    """Trains a model to write the text of each input."""
    ids = kt.text.pack(tokenizer, texts)["token_ids"].numpy()
    steps = epochs * -(-len(ids) // BATCH_SIZE)
    rate = kt.schedules.CosineSchedule(LEARNING_RATE, steps, steps // 10)
    model.compile(kt.training.AdamW(rate, weight_decay=0.01), kt.MaskedCrossentropy())
    model.fit({"source": inputs, "target": ids[:, :-1]}, ids[:, 1:], BATCH_SIZE, epochs, verbose=2)


def exact(found, texts):
    """Returns the share of texts that were found whole."""
    return sum(a == b for a, b in zip(found, texts, strict=True)) / len(texts)


def alignment(model, tokenizer, inputs, strategy, max_length):
    """Writes about one input. Returns the tokens, a list of str, and how much each attends to each place of it."""
    found = model.generate(inputs, strategy, max_length)
    weights = model.score(inputs, found.tokens).alignments[0, 0]
    length = int(found.lengths[0, 0])
    tokens = tokenizer.pieces(keras.ops.convert_to_numpy(found.tokens[0, 0, :length]))
    return tokens, keras.ops.convert_to_numpy(weights)[:length]


def check_export(version, signature, key, paths, expected):
    """Asks an export about files, in a process without this library. Prints its answers, which must be the expected."""
    command = [sys.executable, "-c", SERVER, str(version), signature, key, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8")
    if done.returncode:
        raise SystemExit(f"The export does not answer in a process of its own: {done.stderr[-2000:]}")
    answers = json.loads(done.stdout)
    for path, answer in zip(paths, answers, strict=True):
        print(f"  {path.name}  ->  {answer}")
    assert answers == expected, "the export must say the same"
