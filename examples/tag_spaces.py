"""A Keras model with this library's encoder tags the characters of Korean text: does a space follow?

    python examples/tag_spaces.py
    python examples/tag_spaces.py --data ChatbotData.csv

The model reads 저는책을읽습니다 and says 저는 책을 읽습니다. It learns from the sentences of korean_corpus.py. Then it
adapts by LoRA to everyday talk: the columns Q and A of a CSV file, data/talk.csv by default. A file with more is
github.com/songys/Chatbot_data. A fifth of the talk is held out.

It compares the encoder with Keras's attention and with LSTMs, saves and loads, adapts, quantizes to int8, exports and
asks the export in a process of its own.
"""

import argparse
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import keras
import korean_corpus
import numpy as np
from encoders import SEED, check_saved, check_served, compare, quantize

import keras_transformer as kt
from keras_transformer.data import hold_out, read_table

DATA = Path(__file__).with_name("data") / "talk.csv"
WIDTH = 64
TRAIN, TEST = 3_000, 300  # generated sentences
HELD_OUT = 0.2  # share of the talk that is scored, and not trained on
LONGEST = 40  # characters; what is longer is cut
PAD, UNKNOWN, NO_TAG = 0, 1, -1
BATCH_SIZE = 64
LEARNING_RATE = 2e-3
EPOCHS = 4
LORA_RANK, LORA_EPOCHS, LORA_RATE = 8, 20, 5e-3


def arrays(sentences, numbers):
    """Returns ids and tags of characters, int32 `(sentences, LONGEST)`: the tag is 1 where a space follows."""
    ids, tags = (np.full((len(sentences), LONGEST), fill, "int32") for fill in (PAD, NO_TAG))
    for row, sentence in enumerate(sentences):
        words = sentence.split()
        characters = "".join(words)[:LONGEST]
        ends = np.cumsum([len(word) for word in words[:-1]], dtype=int) - 1
        ids[row, : len(characters)] = [numbers.get(character, UNKNOWN) for character in characters]
        tags[row, : len(characters)] = 0
        tags[row, ends[ends < len(characters)]] = 1
    return ids, tags


def build(encoder, vocab_size):
    """A functional model: `pad_id` marks the padding, and the mask travels with the tensors."""
    ids = keras.Input((None,), dtype="int32")
    x = kt.TokenEmbedding(vocab_size, WIDTH, pad_id=PAD)(ids)
    x = encoder(x)
    return keras.Model(ids, keras.layers.Dense(2)(x))


def fitted(model, ids, tags, epochs, rate=LEARNING_RATE):
    """Trains a model and returns it. Tags of -1 do not count."""
    model.compile(keras.optimizers.Adam(rate), kt.MaskedCrossentropy(pad_id=NO_TAG), jit_compile=False)
    model.fit(ids, tags, BATCH_SIZE, epochs, verbose=0)
    return model


def f1(model, ids, tags):
    """Returns the F1 of the spaces: the harmonic mean of precision and recall."""
    found, true = model.predict(ids, verbose=0).argmax(-1)[tags != NO_TAG], tags[tags != NO_TAG]
    return 2 * np.sum(found & true) / max(np.sum(found) + np.sum(true), 1)


def spaced(model, text, numbers):
    """Puts spaces into a text without any."""
    ids, _ = arrays([text], numbers)
    tags = model.predict(ids, verbose=0)[0].argmax(-1)
    return "".join(character + " " * tag for character, tag in zip(text, tags.tolist(), strict=False)).strip()


def main(arguments=None):
    """Trains, compares, saves, adapts, quantizes, exports."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default=DATA, help="CSV with columns Q and A")
    parser.add_argument("--output", default="tag_spaces", type=Path, help="new folder for the SavedModel")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="passes over the generated sentences")
    options = parser.parse_args(arguments)
    if options.output.exists():
        parser.error(f"{options.output} exists: name a new folder with --output.")
    try:
        talk, new_talk = hold_out(read_table(options.data, "Q", "A"), HELD_OUT)
    except ValueError as error:
        parser.error(f"{error} Name a file with --data, such as that of github.com/songys/Chatbot_data.")
    talk, new_talk = ([text for row in rows for text in row] for rows in (talk, new_talk))
    sentences, test = ([korean for korean, _ in part] for part in korean_corpus.split(SEED, TRAIN, TEST))
    characters = sorted(set("".join(sentences + talk)) - {" "})
    numbers = {character: i for i, character in enumerate(characters, start=UNKNOWN + 1)}
    vocab_size = len(numbers) + UNKNOWN + 1
    train, test, talk, new_talk = (arrays(part, numbers) for part in (sentences, test, talk, new_talk))
    print(f"{len(train[0]):,} generated sentences, {len(talk[0]):,} of talk, {vocab_size:,} characters")

    model = compare(
        lambda encoder: fitted(build(encoder, vocab_size), *train, options.epochs),
        lambda model: f1(model, *test),
        "F1 of spaces",
    )

    padded = np.pad(test[0], ((0, 0), (0, 9)))
    logits = model.predict(test[0], verbose=0), model.predict(padded, verbose=0)[:, :LONGEST]
    difference = np.abs(logits[0] - logits[1])[test[1] != NO_TAG].max()
    print(f"\nNine more columns of padding change the logits by {difference:.0e}.")
    model = check_saved(model, test[0])

    print(f"On talk: F1 {f1(model, *new_talk):.1%}.")
    kt.training.add_adapters(model, LORA_RANK)
    trained = sum(np.prod(weight.shape) for weight in model.trainable_weights)
    fitted(model, *talk, LORA_EPOCHS, LORA_RATE)
    print(f"LoRA trains {trained:,} weights: F1 {f1(model, *new_talk):.1%}.")

    model = check_saved(model, test[0])  # the adapters are added to the kernels
    quantize(model)
    print(f"In int8: F1 {f1(model, *new_talk):.1%}.")
    for text in ("오늘점심뭐먹지?", "내일친구를만나서영화를봐요."):
        print(f"  {text}  ->  {spaced(model, text, numbers)}")
    check_served(model, options.output, test[0])


if __name__ == "__main__":
    main()
