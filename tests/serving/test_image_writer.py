"""Image writers: files of any size, errors of single rows, folders and exports, by a tiny model."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from contracts import refuses

from keras_transformer import layers, serving
from keras_transformer.decoding import Beam, NoRepeatNgram
from keras_transformer.models import EncoderDecoder, Transformer
from keras_transformer.serving.pictures import file_of
from keras_transformer.serving.verify import Served
from keras_transformer.text import ByteTokenizer

SHADES = (
    np.random.default_rng(0)
    .integers(0, [[[[256]]], [[[20]]], [[[90]]], [[[3]]]], (4, 9, 7, 3))
    .astype("uint8")
)
LONGEST = 7


@pytest.fixture(scope="module")
def given():
    tokenizer = ByteTokenizer()
    keras.utils.set_random_seed(0)
    normal = keras.initializers.RandomNormal(0, 1.5)
    stack = {"dropout": 0.0, "normalize_first": True, "kernel_initializer": normal}
    source = keras.Sequential(
        [keras.Input((6, 4, 3)), layers.PatchEmbedding(2, 8, normal), layers.LearnedPositions(6)]
    )
    target = layers.Embeddings(tokenizer.vocab_size, 8, layers.LearnedPositions(LONGEST), dropout=0.0)
    encoder, decoder = (kind(1, 2, 16, **stack) for kind in (layers.Encoder, layers.Decoder))
    output = layers.TokenEmbedding(tokenizer.vocab_size, 8)
    model = EncoderDecoder(source, encoder, target, decoder, output=output)
    for weight in (target.tokens.embeddings, output.embeddings):
        weight.assign(np.random.default_rng(0).normal(size=weight.shape))
    # Without constraints a model of random weights repeats one token.
    options = {
        "constraints": [NoRepeatNgram(1)],
        "preprocessing": layers.ImagePreprocessing((6, 4), scale=1 / 9),
    }
    return serving.ImageWriter(model, tokenizer, Beam(2, n_best=2), **options)


def test_a_picture_alone_is_as_beside_others_and_in_any_form(given, tmp_path):
    (tmp_path / "a.png").write_bytes(file_of(SHADES[0], 3))
    texts = given.write([tmp_path / "a.png", *SHADES[1:3], file_of(SHADES[3], 3)])
    assert [given.write([each])[0] for each in SHADES] == texts == given.write(SHADES, batch_size=3)
    assert len({*texts}) > 1 and given.write([]) == []


def test_texts_that_were_cut_are_counted(given, recwarn):
    ended = given.answer([file_of(each, 3) for each in SHADES])["ended"]
    given.write(SHADES)
    messages = [str(each.message) for each in recwarn]
    cut = f"{int((~ended).sum())} of 4 texts were cut at their largest number of tokens, `max_length`=7"
    assert not ended.all() and [message.partition(":")[0] for message in messages] == [cut]


def test_an_error_is_that_of_its_row(given):
    jpeg, png = tf.io.encode_jpeg(SHADES[0]).numpy(), file_of(SHADES[1], 3)
    huge = png[:16] + (100_000).to_bytes(4, "big") * 2 + png[24:]
    bad = [b"", b"no picture", png[:-30], jpeg[:-2], huge, b"GIF89a" + png]
    found, alone = given.answer([jpeg, *bad, png]), given.answer([jpeg, png])
    assert all(b"`image` must be a JPEG or PNG file" in error for error in found["error"][1:7])
    assert not found["text"][1:7].any() and not found["ended"][1:7].any()
    for key in ("text", "ended", "error"):
        np.testing.assert_array_equal(found[key][[0, 7]], alone[key])
    np.testing.assert_allclose(found["score"][[0, 7]], alone["score"], atol=1e-4)
    assert alone["text"].all() and not alone["error"].any()
    refuses("Row 1 of `images`: `image` must be a JPEG or PNG", given.write, [SHADES[0], b"GIF"])
    refuses(r"uint8 arrays `\(height, width, 3\)`.*dtype=.*float64", given.write, [SHADES[0] / 255])


@pytest.mark.slow
def test_texts_are_those_that_the_model_writes_about_prepared_pictures(given):
    prepared = given.preprocessing(SHADES)
    found = given.model.generate(prepared, given.strategy, LONGEST, constraints=given.constraints)
    answers = given.answer([file_of(each, 3) for each in SHADES], signature="n_best")
    expected = given.tokenizer.detokenize(tf.reshape(found.tokens, (-1, LONGEST))).numpy().reshape(-1, 2)
    np.testing.assert_array_equal(answers["texts"], expected)
    np.testing.assert_allclose(answers["scores"], found.scores, atol=1e-4)
    assert given.write(SHADES) == [each.decode(errors="replace") for each in expected[:, 0]]


@pytest.mark.slow
@pytest.mark.parametrize("xla", [False, True])
def test_a_folder_and_an_export_write_the_same(xla, given, tmp_path):
    given.changed(preprocessing=layers.ImagePreprocessing((6, 4), 0.3)).save(tmp_path / "new")
    again = serving.load(tmp_path / "new")
    assert isinstance(again, serving.ImageWriter) and again.preprocessing.mean == (0.3,)
    files = [file_of(each, 3) for each in SHADES] + [b"no picture"]
    served = Served(again.export(tmp_path / "model", xla=xla, batch_sizes=[2]))
    for signature in ("serving_default", "n_best"):
        expected = again.answer(files, signature=signature)
        found = served.answer(signature, {"image": np.array(files)})
        for key in ("error", "ended", "text" if "text" in expected else "texts"):
            np.testing.assert_array_equal(found[key], expected[key])
    served.close()


def test_the_servable_of_a_model_of_pictures_writes_about_them(given):
    assert isinstance(serving.servable_of(given.model, given.tokenizers), serving.ImageWriter)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preprocessing": layers.ImagePreprocessing()}, "must be an `ImagePreprocessing` with a size"),
        ({"max_length": 8}, "`max_length` must be an integer at least 1, at most 7"),
        ({"strategy": 3}, "`strategy` must be a strategy"),
    ],
)
def test_unusable_arguments_are_refused(given, options, message):
    refuses(message, given.changed, **options)


def test_models_of_texts_and_of_series_are_refused(given):
    series = keras.Sequential([keras.Input((6, 8)), layers.LearnedPositions(6)])
    target = layers.Embeddings(given.tokenizer.vocab_size, 8, layers.LearnedPositions(LONGEST))
    model = EncoderDecoder(series, layers.Encoder(1, 2, 16), target, layers.Decoder(1, 2, 16))
    refuses(r"`model` must read pictures `\(batch", serving.ImageWriter, model, given.tokenizer)
    model = Transformer(260, num_layers=1, d_model=4, num_heads=2, d_ff=8)
    refuses("`model` must read pictures", serving.ImageWriter, model, given.tokenizer)
