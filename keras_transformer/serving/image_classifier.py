"""Image classifiers: an image in, the label of its class out."""

from typing import ClassVar

import numpy as np
import tensorflow as tf

from keras_transformer.checks import check_positive
from keras_transformer.layers import ImagePreprocessing
from keras_transformer.models import VisionTransformer
from keras_transformer.serving.classifier import likeliest, with_labels
from keras_transformer.serving.rows import Output, Signatures, function_of
from keras_transformer.serving.servable import Servable

PREPROCESSING = ("size", "mean", "deviation", "scale", "interpolation")


class ImageClassifierSignatures(Signatures):
    """The signatures of an image classifier's export."""

    descriptions: ClassVar = {
        "serving_default": "The likeliest class of each image.",
        "probabilities": "The probability of each class.",
    }

    def functions(self):
        """Returns a dict from a signature's name to its `tf.function`."""
        image = tf.TensorSpec((None, *self._servable.image_shape), self._servable.image_dtype, name="image")
        return {
            "serving_default": function_of(self.classify, image=image),
            "probabilities": function_of(self.probabilities, image=image),
        }

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

    def _probabilities(self, image):
        def step(images):
            if self._servable.preprocessing is not None:
                images = self._servable.preprocessing(images)
            return [tf.nn.softmax(self._model(images, training=False))]

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
    model_class = VisionTransformer
    signatures_class = ImageClassifierSignatures
    max_source_length = None

    def __init__(self, model, labels=None, preprocessing=None):
        super().__init__(model)
        count = model.num_classes or 0
        labels = [str(i) for i in range(count)] if labels is None else list(labels)
        if not count or len(labels) != count or not all(isinstance(label, str) for label in labels):
            raise ValueError(
                "`labels` must hold a str for each class of the model. "
                f"Received: num_classes={model.num_classes}, labels={labels!r:.200}."
            )
        if preprocessing is not None and not isinstance(preprocessing, ImagePreprocessing):
            raise ValueError(
                f"`preprocessing` must be an `ImagePreprocessing`. Received: preprocessing={preprocessing!r:.200}."
            )
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
        images = images.astype(self.image_dtype)
        classes = []
        for start in range(0, len(images), batch_size):
            answers = self.answer(images[start : start + batch_size])
            classes += [
                (label.decode(), float(probability))
                for label, probability in zip(answers["label"], answers["probability"], strict=True)
            ]
        return classes

    def warmup_requests(self, shapes):
        for signature in self.signatures_class.descriptions:
            for batch_size, _ in shapes if signature == "serving_default" else shapes[:1]:
                shape = (batch_size, *self.model.image_size, self.model.channels)
                yield signature, {"image": np.zeros(shape, self.image_dtype)}

    def describe(self):
        preprocessing = None
        if self.preprocessing is not None:
            config = self.preprocessing.get_config()
            preprocessing = {name: config[name] for name in PREPROCESSING}
        return {"labels": self.labels, "preprocessing": preprocessing, "image_shape": list(self.image_shape)}

    @classmethod
    def arguments_from(cls, description, folder):
        preprocessing = description["preprocessing"]
        if preprocessing is not None:
            preprocessing = ImagePreprocessing(**{name: preprocessing[name] for name in PREPROCESSING})
        return {"labels": description["labels"], "preprocessing": preprocessing}
