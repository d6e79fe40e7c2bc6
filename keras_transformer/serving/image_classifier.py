"""Image classifiers: an image in, the label of its class out."""

import numpy as np
import tensorflow as tf

from keras_transformer.checks import check_positive
from keras_transformer.layers import ImagePreprocessing
from keras_transformer.models import VisionTransformer
from keras_transformer.serving.classifier import all_of, likeliest
from keras_transformer.serving.rows import Rows, function_of
from keras_transformer.serving.servable import Servable

SIGNATURES = {
    "serving_default": "The likeliest class of each image.",
    "probabilities": "How likely each class is.",
}
PREPROCESSING = ("size", "mean", "deviation", "scale", "interpolation")


class ImageClasses(Rows):
    """The functions of an image classifier's graph."""

    about = SIGNATURES

    def functions(self):
        """A dict from a signature's name to its `tf.function`."""
        image = tf.TensorSpec((None, *self._servable.image_shape), self._servable.image_dtype, name="image")
        return {
            "serving_default": function_of(self.classify, image=image),
            "probabilities": function_of(self.probabilities, image=image),
        }

    def classify(self, image):
        """Images `(batch, height, width, channels)` to the label of each and its probability, `(batch,)`."""
        return likeliest(self._probabilities(image), self._servable.labels)

    def probabilities(self, image):
        """Images `(batch, height, width, channels)` to all labels and their probabilities `(batch, classes)`."""
        return all_of(self._probabilities(image), self._servable.labels)

    def _probabilities(self, image):
        classes = len(self._servable.labels)

        def step(images):
            if self._servable.preprocessing is not None:
                images = self._servable.preprocessing(images)
            return [tf.nn.softmax(self._model(images, training=False))]

        with self._computing():
            (found,) = self._in_chunks(step, [image], [((classes,), 0.0)], self._batch_sizes[-1])
        return found


class ImageClassifier(Servable):
    """Tells the class of an image: a model with its labels. Rows stand alone.

    Args:
        model: A `VisionTransformer` with classes.
        labels: Their names, a list of str; their numbers when None.
        preprocessing: An `ImagePreprocessing`, which makes of images as they are, uint8, what the model was trained
            on; None where float32 images come so.

    Raises:
        ValueError: If Keras's backend is not TensorFlow, or there is not one label for each of the model's classes.
    """

    DESCRIPTION = "image_classifier.json"
    model_class = VisionTransformer
    signatures_class = ImageClasses
    max_source_length = None

    def __init__(self, model, labels=None, preprocessing=None):
        super().__init__(model)
        count = model.num_classes or 0
        labels = [str(i) for i in range(count)] if labels is None else list(labels)
        if not count or len(labels) != count or not all(isinstance(label, str) for label in labels):
            raise ValueError(
                "`labels` must be as many names as the model has classes. "
                f"Received: num_classes={model.num_classes}, labels={labels!r:.200}."
            )
        if preprocessing is not None and not isinstance(preprocessing, ImagePreprocessing):
            raise ValueError(
                f"`preprocessing` must be an `ImagePreprocessing`. Received: preprocessing={preprocessing!r}."
            )
        self.labels = labels
        self.preprocessing = preprocessing

    @property
    def image_shape(self):
        """`(height, width, channels)`; None for what is resized."""
        resized = self.preprocessing is not None and self.preprocessing.size is not None
        return (*((None, None) if resized else self.model.image_size), self.model.channels)

    @property
    def image_dtype(self):
        """Of images as they are, or of what a model is trained on."""
        return "float32" if self.preprocessing is None else "uint8"

    def classify(self, images, batch_size=32):
        """The labels of images.

        Args:
            images: `(batch, height, width, channels)`: uint8 where there is a preprocessing, else float32 in the range
                that the model was trained on.
            batch_size: Number of images at once.

        Returns:
            A list of pairs, one for each image: its label, a str, and the label's probability.

        Raises:
            ValueError: If `images` has another shape, or `batch_size` is not positive.
        """
        check_positive(batch_size=batch_size)
        images = np.asarray(images)
        fits = len(images.shape) == 4 and all(
            size in (None, found) for size, found in zip(self.image_shape, images.shape[1:], strict=True)
        )
        if not fits or (self.image_dtype == "uint8") != (images.dtype == np.uint8):
            raise ValueError(
                f"`images` must be {self.image_dtype} of shape `(batch, {', '.join(map(str, self.image_shape))})`. "
                f"Received: dtype={images.dtype}, shape={images.shape}."
            )
        images = images.astype(self.image_dtype)
        answers = []
        for start in range(0, len(images), batch_size):
            found = self.answer(images[start : start + batch_size])
            answers += [
                (label.decode(), float(p))
                for label, p in zip(found["label"], found["probability"], strict=True)
            ]
        return answers

    def requests(self, shapes):
        for signature in self.signatures_class.about:
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
    def arguments_of(cls, description, folder):
        preprocessing = description["preprocessing"]
        if preprocessing is not None:
            preprocessing = ImagePreprocessing(**{name: preprocessing[name] for name in PREPROCESSING})
        return {"labels": description["labels"], "preprocessing": preprocessing}
