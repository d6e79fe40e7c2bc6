"""Image classifiers, in Python and in the runtime of the server."""

import numpy as np
import pytest
import tensorflow as tf
from alone import answers
from contracts import randomized, refuses

from keras_transformer.layers import Encoder, ImagePreprocessing
from keras_transformer.models import VisionTransformer
from keras_transformer.serving import ImageClassifier, load
from keras_transformer.serving.export import ServedGraph

LABELS = ["circle", "square", "star"]


@pytest.fixture(scope="module")
def classifier():
    encoder = Encoder(1, 2, 16, dropout=0.0, normalize_first=True)
    model = VisionTransformer((6, 4), 2, 8, encoder, 3, channels=1)
    model = randomized(model, scale=0.5)
    model.head.bias.assign([0.0, 0.0, 0.0])
    return ImageClassifier(model, LABELS)


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).normal(scale=9.0, size=(7, 6, 4, 1)).astype("float32")


@pytest.mark.slow
def test_answers_are_the_models_row_by_row(classifier, images):
    found = classifier.classify(images, batch_size=3)
    logits = classifier.model(images).numpy()
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert [label for label, _ in found] == [LABELS[i] for i in shares.argmax(axis=1)]
    assert np.ptp([p for _, p in found]) > 1e-3
    np.testing.assert_allclose([p for _, p in found], shares.max(axis=1), atol=1e-5)


def test_no_image_changes_another(classifier, images):
    broken = images.copy()
    broken[2] = np.nan
    expected, found = classifier.classify(images), classifier.classify(broken)
    assert [row for i, row in enumerate(found) if i != 2] == [row for i, row in enumerate(expected) if i != 2]


@pytest.mark.parametrize("xla", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_saved_and_exported_answers_are_the_same(xla, classifier, images, tmp_path):
    classifier.save(tmp_path / "saved")
    again = load(tmp_path / "saved")
    expected = classifier.classify(images)
    assert again.classify(images) == expected
    export = again.export(tmp_path / "model", xla=xla, batch_sizes=[1, 4], check=False)
    found = answers(export, tmp_path, xla=xla, image=images.tolist())
    assert found["label"] == [label for label, _ in expected]
    np.testing.assert_allclose(found["probability"], [p for _, p in expected], atol=1e-5)
    found = answers(export, tmp_path, "probabilities", xla, image=images.tolist())
    assert found["labels"] == [LABELS] * 7
    np.testing.assert_allclose(np.max(found["probabilities"], axis=1), [p for _, p in expected], atol=1e-5)


def test_the_check_of_an_export_asks_about_one_image_whatever_the_batch_sizes(classifier):
    assert ServedGraph(classifier, batch_sizes=[8, 32]).checked_shape == (1, None)
    assert ServedGraph(classifier, xla=True, batch_sizes=[8, 32]).checked_shape == (8, None)


def test_wrong_labels_and_images_are_refused(classifier, images):
    refuses(r"num_classes=3, labels=\['a', 'b'\]", ImageClassifier, classifier.model, ["a", "b"])
    with pytest.raises(
        ValueError, match=r"\(batch, 6, 4, 1\)`. Received: dtype=float32, shape=\(7, 5, 4, 1\)"
    ):
        classifier.classify(images[:, 1:])
    rule = r"for a compiled search of texts, `xla=True`. Received: source_lengths=\[8\]"
    refuses(rule, ServedGraph, classifier, xla=True, source_lengths=[8])


def test_files_are_decoded_and_a_bad_one_harms_no_neighbour(classifier):
    shades = np.random.default_rng(2).integers(0, 256, (3, 9, 7, 1)).astype("uint8")
    whole = ImageClassifier(classifier.model, LABELS, ImagePreprocessing((6, 4), 0.4, 0.2))
    files = [tf.io.encode_png(image).numpy() for image in shades]
    jpeg = tf.io.encode_jpeg(shades[0], quality=100).numpy()
    huge = files[0][:16] + (100_000).to_bytes(4, "big") * 2 + files[0][24:]
    bad = [b"", b"no picture", files[0][:-30], huge, jpeg[:40], b"GIF89a" + files[0]]
    found = whole.classify_encoded([files[0], *bad, files[1], jpeg, files[2]], batch_size=4)
    expected = whole.classify(np.concatenate([shades[:2], tf.io.decode_jpeg(jpeg)[None], shades[2:]]))
    right = [0, 7, 8, 9]
    assert [found[i][0] for i in right] == [label for label, _ in expected]
    np.testing.assert_allclose([found[i][1] for i in right], [p for _, p in expected], atol=1e-5)
    assert found[1:7] == [("", 0.0)] * 6
    refuses("needs a `preprocessing`", classifier.classify_encoded, files)
    refuses("must be a list of bytes", whole.classify_encoded, jpeg)


@pytest.mark.slow
def test_files_are_decoded_in_the_runtime_of_the_server(classifier, tmp_path):
    whole = ImageClassifier(classifier.model, LABELS, ImagePreprocessing((6, 4), 0.4, 0.2))
    export = whole.export(tmp_path / "model", batch_sizes=[2])  # the check asks with pictures
    files = [tf.io.encode_png(np.full((9, 7, 1), shade, "uint8")).numpy() for shade in (0, 255)]
    files.insert(1, b"no picture")
    found = answers(
        export, tmp_path, "encoded", image=[each.decode("utf-8", "surrogateescape") for each in files]
    )
    assert found["label"] == [label for label, _ in whole.classify_encoded(files)]
    assert found["label"][1] == "" and "must be a JPEG or PNG" in found["error"][1]
    assert found["error"][::2] == ["", ""]


@pytest.mark.slow
def test_images_as_they_are_are_prepared_in_the_graph(classifier, tmp_path):
    shades = np.random.default_rng(1).integers(0, 256, (3, 9, 7, 1)).astype("uint8")
    preprocessing = ImagePreprocessing((6, 4), 0.4, 0.2, interpolation="bicubic")
    whole = ImageClassifier(classifier.model, LABELS, preprocessing)
    expected = classifier.classify(preprocessing(shades))
    found = whole.classify(shades)
    assert [label for label, _ in found] == [label for label, _ in expected]
    np.testing.assert_allclose([p for _, p in found], [p for _, p in expected], atol=1e-5)
    refuses(r"must be uint8 of shape `\(batch, None, None, 1\)`", whole.classify, shades / 255)
    whole.save(tmp_path / "saved")
    export = load(tmp_path / "saved").export(tmp_path / "model", batch_sizes=[2], check=False)
    answered = answers(export, tmp_path, image=shades.tolist())
    np.testing.assert_allclose(answered["probability"], [p for _, p in expected], atol=1e-5)
