"""`keras-transformer caption`: a line about the picture of each line in."""

import keras
import numpy as np
import pytest
from commands import assert_refused, run

from keras_transformer import layers
from keras_transformer.decoding import NoRepeatNgram
from keras_transformer.models import EncoderDecoder
from keras_transformer.serving import ImageWriter
from keras_transformer.serving.pictures import file_of
from keras_transformer.text import ByteTokenizer

SHADES = np.random.default_rng(0).integers(0, [[[[256]]], [[[40]]]], (2, 6, 4, 3)).astype("uint8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    tokenizer, base = ByteTokenizer(), tmp_path_factory.mktemp("pictures")
    keras.utils.set_random_seed(0)
    stack = {"dropout": 0.0, "kernel_initializer": keras.initializers.RandomNormal(0, 1.5)}
    source = keras.Sequential(
        [keras.Input((6, 4, 3)), layers.PatchEmbedding(2, 8), layers.LearnedPositions(6)]
    )
    target = layers.Embeddings(tokenizer.vocab_size, 8, layers.LearnedPositions(7), dropout=0.0)
    encoder, decoder = (kind(1, 2, 16, **stack) for kind in (layers.Encoder, layers.Decoder))
    model = EncoderDecoder(source, encoder, target, decoder)
    for weight in model.weights:
        weight.assign(np.random.default_rng(0).normal(size=weight.shape))
    writer = ImageWriter(model, tokenizer, constraints=[NoRepeatNgram(1)])
    writer.save(base / "writer")
    for name, shades in zip(("a", "b 한"), SHADES, strict=True):
        (base / f"{name}.png").write_bytes(file_of(shades, 3))
    (base / "no picture.png").write_bytes(b"text")
    return base


def test_each_picture_gets_a_line_and_a_bad_one_an_empty_line(folder):
    names = "a", "missing", "no picture", "b 한"
    paths = "".join(f"{folder / name}.png\n" for name in names).encode() + b"\n"
    code, out, err = run("caption", folder / "writer", "--batch-size", 3, stdin=paths)
    texts = [" ".join(text.split()) for text in ImageWriter.load(folder / "writer").write(list(SHADES))]
    assert texts[0] != texts[1]
    assert (code, out.decode().split("\n")) == (4, [texts[0], "", "", texts[1], "", ""])
    assert err.count("missing.png") == err.count("no picture.png: ") == 1
    assert err.count("Line 5 of standard input must be the path of a file") == 1
    assert err.count(" of 5 texts were cut at their largest number of tokens, `max_length`=7") == 1


def test_the_search_and_batches_are_checked(folder):
    assert_refused("caption", folder / "writer", "--batch-size", "0", named="--batch-size")
    assert_refused("caption", folder / "a.png", named="a.png")
