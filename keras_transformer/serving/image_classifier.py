"""Image classifiers: an image in, the label of its class out."""

from typing import ClassVar

import numpy as np
import tensorflow as tf

from keras_transformer.checks import check, check_positive
from keras_transformer.layers import ImagePreprocessing
from keras_transformer.models import VisionTransformer
from keras_transformer.serving.classifier import likeliest, with_labels
from keras_transformer.serving.pictures import UNUSABLE, pictures
from keras_transformer.serving.servable import Servable
from keras_transformer.serving.signatures import Output, Signatures, function_of


class ImageClassifierSignatures(Signatures):
    """The signatures of an image classifier's export."""

    descriptions: ClassVar = {
        "serving_default": "The likeliest class of each image.",
        "probabilities": "The probability of each class.",
        "encoded": "The likeliest class of each JPEG or PNG file.",
    }

    def functions(self):
        """Returns a dict from a signature's name to its `tf.function`."""
        image = tf.TensorSpec((None, *self._servable.image_shape), self._servable.image_dtype, name="image")
        functions = {
            "serving_default": function_of(self.classify, image=image),
            "probabilities": function_of(self.probabilities, image=image),
        }
        if self._servable.preprocessing is not None:
            encoded = tf.TensorSpec((None,), tf.string, name="image")
            functions["encoded"] = function_of(self.classify_encoded, image=encoded)
        return functions

    def classify(self, image):
        """Finds the likeliest class of each image.

        Args:
            image: float32 or uint8 `(batch, height, width, channels)`.

        Returns:
            A dict of tensors `(batch,)`: `label`, string; `probability`, float32.
        """
        return likeliest(self._probabilities(image), self._servable.labels)

    def probabilities(self, image):
        """Computes the probability of each class.

        Args:
            image: float32 or uint8 `(batch, height, width, channels)`.

        Returns:
            A dict of tensors `(batch, classes)`: `labels`, string; `probabilities`, float32.
        """
        return with_labels(self._probabilities(image), self._servable.labels)

    def classify_encoded(self, image):
        """Finds the likeliest class of each file.

        Args:
            image: The bytes of JPEG or PNG files, string `(batch,)`. A file that is not a picture, or has more than
                `MAX_PIXELS` pixels, gets an empty label, and changes no other row.

        Returns:
            A dict of tensors `(batch,)`: `label`, string; `probability`, float32; `error`, string, empty for a row
            with a label.
        """

        servable, prepared = self._servable, (*self._model.image_size, self._model.channels)
        compute = self._compiled_step(self._computed)

        def step(contents):
            images, usable = pictures(contents, servable.preprocessing, servable.image_shape, prepared)
            return [*compute(images), usable]

        outputs = [Output((len(servable.labels),), 0.0), Output((), False)]
        with self._computing():
            probabilities, usable = self._in_chunks(step, [image], outputs, self._batch_sizes[-1])
        best = likeliest(probabilities, servable.labels)
        return {
            "label": tf.where(usable, best["label"], ""),
            "probability": tf.where(usable, best["probability"], 0.0),
            "error": tf.where(usable, "", UNUSABLE),
        }

    def _computed(self, images):
        return [tf.nn.softmax(self._model(images, training=False))]

    def _probabilities(self, image):
        compute = self._compiled_step(self._computed)

        def step(images):
            return compute(
                images if self._servable.preprocessing is None else self._servable.preprocessing(images)
            )

        outputs = [Output((len(self._servable.labels),), 0.0)]
        with self._computing():
            (probabilities,) = self._in_chunks(step, [image], outputs, self._batch_sizes[-1])
        return probabilities


class ImageClassifier(Servable):
    """Classifies images. Each image is classified independently.

    Args:
        model: A `VisionTransformer` with classes.
        labels: List of str, one for each class. None for "0", "1" and so on.
        preprocessing: An `ImagePreprocessing`: the classifier takes uint8 images and prepares them as the images of
            the model's training. None if the classifier takes float32 images that are prepared already.

    Raises:
        ValueError: If the backend of Keras is not TensorFlow, there is not one label for each class, or
            `preprocessing` is of another class.
    """

    DESCRIPTION = "image_classifier.json"
    model_classes = (VisionTransformer,)
    signatures_class = ImageClassifierSignatures
    max_source_length = None

    def __init__(self, model, labels=None, preprocessing=None):
        super().__init__(model)
        count = model.num_classes or 0
        labels = [str(i) for i in range(count)] if labels is None else list(labels)
        fits = count and len(labels) == count and all(isinstance(label, str) for label in labels)
        rule = "`labels` must hold a str for each class of the model."
        check(fits, rule, num_classes=model.num_classes, labels=labels)
        fits = preprocessing is None or isinstance(preprocessing, ImagePreprocessing)
        check(fits, "`preprocessing` must be an `ImagePreprocessing`.", preprocessing=preprocessing)
        self.labels = labels
        self.preprocessing = preprocessing

    @property
    def image_shape(self):
        """The shape of an image, `(height, width, channels)`. Height and width are None if images are resized."""
        is_resized = self.preprocessing is not None and self.preprocessing.size is not None
        return (*((None, None) if is_resized else self.model.image_size), self.model.channels)

    @property
    def image_dtype(self):
        """The dtype of images: "uint8" with a preprocessing, else "float32"."""
        return "float32" if self.preprocessing is None else "uint8"

    def classify(self, images, batch_size=32):
        """Classifies images.

        Args:
            images: uint8 `(batch, height, width, channels)` with a preprocessing, else float32 in the range of the
                model's training.
            batch_size: Number of images at once.

        Returns:
            A list of pairs, one for each image: the label, a str, and its probability, a float.

        Raises:
            ValueError: If `images` has another shape or dtype, or `batch_size` is not positive.
        """
        check_positive(batch_size=batch_size)
        images = np.asarray(images)
        fits = len(images.shape) == 4 and all(
            size in (None, received)
            for size, received in zip(self.image_shape, images.shape[1:], strict=True)
        )
        if not fits or (self.image_dtype == "uint8") != (images.dtype == np.uint8):
            raise ValueError(
                f"`images` must be {self.image_dtype} of shape `(batch, {', '.join(map(str, self.image_shape))})`. "
                f"Received: dtype={images.dtype}, shape={images.shape}."
            )
        return self._classes(images.astype(self.image_dtype), batch_size)

    def classify_encoded(self, images, batch_size=32):
        """Classifies JPEG and PNG files. Needs a `preprocessing`.

        Args:
            images: List of the bytes of files.
            batch_size: Number of images at once.

        Returns:
            A list with a pair for each file: the label, a str, and its probability, a float. The label of a file that
            is not a picture, or has more than 2**26 pixels, is empty.

        Raises:
            ValueError: If the classifier has no `preprocessing`, `images` is not a list of bytes, or `batch_size` is
                not positive.
        """
        check_positive(batch_size=batch_size)
        rule = "`classify_encoded` needs a `preprocessing`."
        check(self.preprocessing is not None, rule, preprocessing=None)
        if isinstance(images, (str, bytes)) or not all(isinstance(image, bytes) for image in images):
            raise ValueError(f"`images` must be a list of bytes. Received: {images!r:.200}.")
        return self._classes(images, batch_size, signature="encoded")

    def _classes(self, images, batch_size, **options):
        """Returns a pair of label and probability for each image."""
        classes = []
        for start in range(0, len(images), batch_size):
            answers = self.answer(images[start : start + batch_size], **options)
            classes += [
                (label.decode(), float(probability))
                for label, probability in zip(answers["label"], answers["probability"], strict=True)
            ]
        return classes

    def warmup_requests(self, shapes):
        for signature in ("serving_default", "probabilities"):
            for batch_size, _ in shapes if signature == "serving_default" else shapes[:1]:
                shape = (batch_size, *self.model.image_size, self.model.channels)
                yield signature, {"image": np.zeros(shape, self.image_dtype)}
        if self.preprocessing is not None:
            png = tf.io.encode_png(np.zeros((*self.model.image_size, self.model.channels), "uint8")).numpy()
            yield "encoded", {"image": [png] * shapes[0][0]}
