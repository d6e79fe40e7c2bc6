"""Image classifiers: an image in, the label of its class out."""

import numpy as np
import tensorflow as tf

from keras_transformer.checks import check_positive
from keras_transformer.models import VisionTransformer
from keras_transformer.serving.classifier import all_of, likeliest
from keras_transformer.serving.rows import Rows, function_of
from keras_transformer.serving.servable import Servable

SIGNATURES = {
    "serving_default": "The likeliest class of each image.",
    "probabilities": "How likely each class is.",
}


class ImageClasses(Rows):
    """The functions of an image classifier's graph."""

    about = SIGNATURES

    def functions(self):
        """A dict from a signature's name to its `tf.function`."""
        image = tf.TensorSpec((None, *self._servable.image_shape), tf.float32, name="image")
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
            return [tf.nn.softmax(self._model(images, training=False))]

        with self._computing():
            (found,) = self._in_chunks(step, [image], [((classes,), 0.0)], self._batch_sizes[-1])
        return found


class ImageClassifier(Servable):
    """Tells the class of an image: a model with its labels. Rows stand alone.

    Args:
        model: A `VisionTransformer` with classes.
        labels: Their names, a list of str; their numbers when None.

    Raises:
        ValueError: If Keras's backend is not TensorFlow, or there is not one label for each of the model's classes.
    """

    DESCRIPTION = "image_classifier.json"
    model_class = VisionTransformer
    signatures_class = ImageClasses
    max_source_length = None

    def __init__(self, model, labels=None):
        super().__init__(model)
        count = model.num_classes or 0
        labels = [str(i) for i in range(count)] if labels is None else list(labels)
        if not count or len(labels) != count or len(set(labels)) != count:
            raise ValueError(
                "`labels` must be as many different names as the model has classes. "
                f"Received: num_classes={model.num_classes}, labels={labels}."
            )
        self.labels = labels

    @property
    def image_shape(self):
        """`(height, width, channels)`."""
        return (*self.model.image_size, self.model.channels)

    def classify(self, images, batch_size=32):
        """The labels of images.

        Args:
            images: float32 `(batch, height, width, channels)`, in the range that the model was trained on.
            batch_size: Number of images at once.

        Returns:
            A list of pairs, one for each image: its label, a str, and the label's probability.

        Raises:
            ValueError: If `images` has another shape, or `batch_size` is not positive.
        """
        check_positive(batch_size=batch_size)
        images = np.asarray(images, "float32")
        if images.shape[1:] != self.image_shape:
            raise ValueError(
                f"`images` must have shape `(batch, {', '.join(map(str, self.image_shape))})`. "
                f"Received: shape={images.shape}."
            )
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
                yield signature, {"image": np.zeros((batch_size, *self.image_shape), "float32")}

    def describe(self):
        return {"labels": self.labels, "image_shape": list(self.image_shape)}

    @classmethod
    def arguments_of(cls, description, folder):
        return {"labels": description["labels"]}
