"""Trains a small language model of bytes, says how many bits a byte it needs, and lets it write.

    python examples/character_model.py --output character_model
    python examples/character_model.py --text book.txt --prompt "It was" --output book_model

A text is a line of the file. Without one they are those of korean_corpus.py, `Korean = English`: the model that goes
on with `저는 학생입니다. = ` translates.
"""

import argparse
import lzma
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import keras
import korean_corpus
import numpy as np

import keras_transformer as kt
from keras_transformer import layers
from keras_transformer.data import PackedTexts, read_lines
from keras_transformer.models import LanguageModel
from keras_transformer.schedules import CosineSchedule
from keras_transformer.serving import TextGenerator
from keras_transformer.text import ByteTokenizer
from keras_transformer.training import Adam, Progress

HELD_OUT = 0.05  # share of a file's lines at its end that are scored, and not trained on
TRAIN, TEST = 6_000, 300  # lines of the generated corpus
LENGTH = 256  # bytes a row of a batch holds: several short texts, or a piece of a long one
BATCH_SIZE = 16
EPOCHS = 6
LEARNING_RATE = 3e-3
D_MODEL, LAYERS, HEADS, D_FF, DROPOUT = 128, 3, 4, 344, 0.05
SAMPLE = kt.Sample(temperature=0.8, top_p=0.95, seed=1)
LONGEST = 200  # bytes it writes
SEED = 1


def generated():
    """Lines of the generated corpus to train on, and lines with combinations of words that are not in those."""
    parts = korean_corpus.split(train=TRAIN, held_out=TEST)
    return [[f"{korean} = {english}" for korean, english in pairs] for pairs in parts]


def of_file(path):
    """Lines of a text file to train on, and those at its end."""
    lines = [line for line in read_lines(path) if line.strip()]
    count = max(1, round(HELD_OUT * len(lines)))
    if len(lines) < 2:
        raise ValueError(f"{path} must have two or more lines of text. Received: {len(lines)}.")
    return lines[:-count], lines[-count:]


def build():
    """Makes a language model of bytes with Llama's layers: rotary positions, root-mean-square norms before the
    sublayers, and gated feed-forward networks."""

    def layer():
        attention = layers.MultiHeadAttention(
            HEADS, D_MODEL // HEADS, use_bias=False, positions=layers.RotaryPositions()
        )
        feed_forward = layers.GatedFeedForward(D_FF)
        return layers.DecoderLayer(
            dropout=DROPOUT, normalize_first=True, norm="rms", attention=attention, feed_forward=feed_forward
        )

    decoder = layers.Decoder([layer() for _ in range(LAYERS)])
    return LanguageModel(layers.Embeddings(ByteTokenizer.vocab_size, D_MODEL, dropout=DROPOUT), decoder)


def train(lines, held_out, epochs):
    """Trains a model; returns it with the bits it needs for a byte of what was held out, ends of lines included."""
    ids = (ByteTokenizer().tokenize(each).to_list() for each in (lines, held_out))
    packed, held_out = (PackedTexts(each, LENGTH, BATCH_SIZE, seed=SEED) for each in ids)
    model = build()
    print(f"{packed.tokens:,} bytes in {packed.rows:,} rows, {model.count_params():,} parameters", flush=True)
    steps = epochs * packed.steps
    model.compile(
        Adam(CosineSchedule(LEARNING_RATE, steps, steps // 10), beta_2=0.98, global_clipnorm=1.0),
        kt.MaskedCrossentropy(),
        metrics=[kt.Perplexity()],
    )
    history = model.fit(
        packed.dataset(epochs=epochs),
        epochs=epochs,
        steps_per_epoch=packed.steps,
        validation_data=held_out.dataset(epochs=1),
        shuffle=False,
        callbacks=[Progress(packed.steps, packed.tokens)],
        verbose=0,
    )
    return model, np.log2(history.history["val_perplexity"][-1])


def xz_bits(lines, held_out):
    """What xz needs for a byte of some lines after it has read others."""
    before, after = ("".join(f"{line}\n" for line in each).encode() for each in (lines, held_out))
    return 8 * (len(lzma.compress(before + after)) - len(lzma.compress(before))) / len(after)


def main(arguments=None):
    """Trains, scores what was held out, writes and saves."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", help="UTF-8 file to learn from; the generated corpus if none")
    parser.add_argument("--prompt", action="append", help="what to go on with; may be given again")
    parser.add_argument("--output", default="character_model", type=Path, help="new folder for the model")
    parser.add_argument("--epochs", default=EPOCHS, type=int, help="passes over the text")
    options = parser.parse_args(arguments)
    if options.output.exists():
        parser.error(f"{options.output} exists: name a new folder with --output.")
    try:
        lines, held_out = of_file(options.text) if options.text else generated()
    except ValueError as error:
        parser.error(str(error))
    keras.utils.set_random_seed(SEED)

    model, bits = train(lines, held_out, options.epochs)
    print(f"{bits:.3f} bits a byte of {len(held_out)} new lines; xz needs {xz_bits(lines, held_out):.3f}")
    generator = TextGenerator(model, ByteTokenizer(), SAMPLE, max_length=LONGEST)
    prompts = options.prompt or ["", *(line[: len(line) // 2] for line in held_out[:4])]
    for prompt, text in zip(prompts, generator.generate(prompts), strict=True):
        print(f"  {prompt} | {text}")
    generator.save(options.output)
    print(f"Saved to {options.output}.")


if __name__ == "__main__":
    main()
