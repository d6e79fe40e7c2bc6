"""Image writers: a picture in, a text about it out."""

from typing import ClassVar

import numpy as np
import tensorflow as tf

from keras_transformer.checks import check
from keras_transformer.decoding import Greedy
from keras_transformer.layers import ImagePreprocessing
from keras_transformer.models import EncoderDecoder
from keras_transformer.serving.pictures import UNUSABLE, file_of, pictures
from keras_transformer.serving.signatures import Output, function_of
from keras_transformer.serving.writer import FileWriter, WriterSignatures, warn_of_unended


class ImageWriterSignatures(WriterSignatures):
    """The signatures of an image writer's export."""

    descriptions: ClassVar = {
        "serving_default": "Writes a text about each JPEG or PNG file.",
        "n_best": "The n best texts about each JPEG or PNG file, best first.",
    }

    def __init__(self, servable, batch_sizes, source_lengths=None, weights=None):
        super().__init__(servable, batch_sizes, source_lengths, weights)
        # Both signatures call it. As a function of its own, it is in the graph once.
        self._search = function_of(self._search_in_chunks, image=tf.TensorSpec((None,), tf.string))

    def functions(self):
        """Returns a dict from a signature's name to its `tf.function`."""
        image = tf.TensorSpec((None,), tf.string, name="image")
        return {
            "serving_default": function_of(self.write, image=image),
            "n_best": function_of(self.n_best, image=image),
        }

    def write(self, image):
        """Writes a text about each file.

        Args:
            image: The bytes of JPEG or PNG files, string `(batch,)`. A file that is not a picture, or has more than
                `MAX_PIXELS` pixels, gets an empty text, and changes no other row.

        Returns:
            A dict of tensors `(batch,)`: `text`, string; `score`, float32; `ended`, bool, whether the text is
            complete: it was not cut at its largest length; `error`, string, empty for a row with a text.
        """
        texts, scores, ended, error = self._search(image)
        return {"text": texts[:, 0], "score": scores[:, 0], "ended": ended[:, 0], "error": error}

    def n_best(self, image):
        """Finds several texts about each file, best first.

        Args:
            image: As for `write`.

        Returns:
            A dict: `texts`, string, `scores`, float32, and `ended`, bool, `(batch, n_best)`; `error`, string
            `(batch,)`.
        """
        return dict(zip(("texts", "scores", "ended", "error"), self._search(image), strict=True))

    def _search_in_chunks(self, image):
        servable, strategy = self._servable, self._strategy()
        n, longest = strategy.n_best, servable.longest_output
        any_size = (None, None, servable.image_shape[-1])

        def search(images):
            return [*self._model.search(images, strategy, longest, constraints=servable.constraints)]

        search = self._compiled_step(search)

        def step(contents):
            images, usable = pictures(contents, servable.preprocessing, any_size, servable.image_shape)
            return [*search(images), usable]

        outputs = [Output((n, longest), self._model.pad_id), Output((n,), 0), Output((n,), 0.0)]
        with self._computing():
            tokens, lengths, scores, usable = self._in_chunks(
                step, [image], [*outputs, Output((), False)], self._batch_sizes[-1]
            )
        texts = tf.reshape(self._texts(tf.reshape(tokens, (-1, longest))), (-1, n))
        whole = usable[:, None]
        ended = whole & self.which_ended(tokens, lengths, longest)
        error = tf.where(usable, "", UNUSABLE)
        return [tf.where(whole, texts, ""), tf.where(whole, scores, 0.0), ended, error]


class ImageWriter(FileWriter):
    """Writes texts about pictures. The reading of files, the model and the search are one graph.

    Each picture is read independently.

    ```python
    writer = kt.serving.ImageWriter(model, tokenizer, kt.decoding.Beam(4), max_length=20)
    writer.write(["a.png", "b.jpg"])
    writer.export("models/captions", version=1)
    ```

    Args:
        model: An `EncoderDecoder` whose source reads pictures `(batch, height, width, channels)`, such as
            `PatchEmbedding` or a Keras model with convolutions.
        tokenizer: The tokenizer of the texts, from `keras_transformer.text`.
        strategy: How to choose tokens: `Greedy()`, `Beam()`, `DiverseBeam()` or `Sample()`.
        max_length: Largest number of tokens of a text, eos included. None for the number of the model's positions.
        constraints: List of constraints that every text must satisfy.
        preprocessing: An `ImagePreprocessing` with a size, that of the model's training. None for the size that the
            source takes, and pixels from 0 to 1.

    Raises:
        ValueError: If the backend of Keras is not TensorFlow, the model reads something else, the tokenizer has more
            ids than the model or other special ids, or an argument is of another class or out of range.
    """

    DESCRIPTION = "image_writer.json"
    TOKENIZERS = ("tokenizer",)
    model_classes = (EncoderDecoder,)
    signatures_class = ImageWriterSignatures
    reads = "pictures"

    def __init__(
        self,
        model,
        tokenizer,
        strategy=Greedy(),  # noqa: B008
        max_length=None,
        constraints=(),
        *,
        preprocessing=None,
    ):
        super().__init__(model, tokenizer, strategy, max_length, constraints)
        shape = getattr(model.input_signature()[0]["source"], "shape", ())
        rule = "`model` must read pictures `(batch, height, width, channels)`."
        check(len(shape) == 4 and shape[-1] in (1, 3, 4), rule, shape=shape)
        if preprocessing is None:
            rule = "`preprocessing` must be given for a source that takes pictures of any size."
            check(None not in shape[1:3], rule, shape=shape)
            preprocessing = ImagePreprocessing(shape[1:3])
        sized = isinstance(preprocessing, ImagePreprocessing) and preprocessing.size is not None
        rule = "`preprocessing` must be an `ImagePreprocessing` with a size."
        check(sized, rule, preprocessing=preprocessing)
        self.tokenizer, self.preprocessing = tokenizer, preprocessing
        self.image_shape = (*preprocessing.size, shape[-1])

    def write(self, images, batch_size=32):
        """Writes texts about pictures.

        Args:
            images: List of pictures: the path of a JPEG or PNG file, its bytes, or a uint8 array
                `(height, width, channels)`, of any size.
            batch_size: Number of pictures at once.

        Returns:
            A list of str, one for each picture.

        Raises:
            ValueError: If a picture cannot be read, or `batch_size` is not positive.
            OSError: If a file cannot be read.
        """
        rule = "`images` must be a list of pictures."
        check(isinstance(images, (list, tuple)) or np.ndim(images) == 4, rule, images=type(images).__name__)
        files = [file_of(image, self.image_shape[-1]) for image in images]
        batches = list(self.answers_of(files, batch_size, "images"))
        self.warn_if_unended(sum(int(np.sum(~batch["ended"])) for batch in batches), len(files))
        return [text.decode("utf-8", "replace") for batch in batches for text in batch["text"]]

    def warn_if_unended(self, unended, count):
        """Warns that some texts have no end.

        Args:
            unended: Number of texts that were cut at the largest length, an int.
            count: Number of texts, an int.
        """
        warn_of_unended(unended, count, "texts", self.longest_output)

    def warmup_requests(self, shapes):
        file = file_of(np.zeros(self.image_shape, "uint8"), self.image_shape[-1])
        yield from (("serving_default", {"image": [file] * batch_size}) for batch_size, _ in shapes)
        yield "n_best", {"image": [file] * shapes[0][0]}
