"""Pictures: JPEG and PNG files are decoded and prepared inside a graph."""

import numpy as np
import tensorflow as tf

from keras_transformer.checks import check
from keras_transformer.untrusted import bytes_of

# The first bytes of a PNG file.
PNG = b"\x89PNG\r\n\x1a\n"
# A small file can be a picture of gigabytes.
MAX_PIXELS = 2**26
UNUSABLE = (
    f"`image` must be a JPEG or PNG file of at most {MAX_PIXELS} pixels that the model's preprocessing takes."
)


def pictures(contents, preprocessing, read, prepared):
    """Decodes and prepares files. A damaged one changes no other.

    TensorFlow's decoders raise an error for a damaged file, and nothing in a header tells whether its body is whole. In
    a dataset such an element can be left out. All files go through one dataset: to start one takes milliseconds.

    Args:
        contents: The bytes of files, string `(batch,)`.
        preprocessing: An `ImagePreprocessing`.
        read: The shape of a decoded picture, `(height, width, channels)`. None for a height or a width that may be any.
        prepared: The shape of a prepared picture, `(height, width, channels)`.

    Returns:
        float32 `(batch, *prepared)`, 0 for an unusable file; and which files are usable, bool `(batch,)`.
    """
    count = tf.size(contents, tf.int64)

    def prepare(row, content):
        with tf.control_dependencies(
            [tf.debugging.assert_less_equal(_pixels(content), tf.constant(MAX_PIXELS, tf.int64))]
        ):
            image = tf.io.decode_image(content, read[-1], expand_animations=False)
        image = preprocessing(tf.ensure_shape(image, read)[None])[0]
        return row, tf.ensure_shape(image, prepared)

    usable = tf.data.Dataset.from_tensor_slices(contents).enumerate().map(prepare).ignore_errors()
    # A batch needs an element. This one has a row behind the others.
    last = tf.data.Dataset.from_tensors((count, tf.zeros(prepared)))
    rows, images = last.concatenate(usable).batch(count + 1).get_single_element()
    shape = tf.stack([count + 1, *(tf.constant(size, tf.int64) for size in prepared)])
    images = tf.scatter_nd(rows[:, None], images, shape)[:-1]
    found = tf.scatter_nd(rows[:, None], tf.ones_like(rows), shape[:1])[:-1]
    return tf.ensure_shape(images, (None, *prepared)), found > 0


def file_of(picture, channels):
    """Returns a picture as the bytes of a file, which `pictures` reads.

    Args:
        picture: The path of a JPEG or PNG file, its bytes, or a uint8 array `(height, width, channels)`.
        channels: The channels of an array.

    Raises:
        ValueError: If it is something else, or the path is not that of a regular file of at most 2**26 bytes.
        OSError: If the file cannot be read.
    """
    content = bytes_of(picture)
    if content is not None:
        return content
    shades = np.asarray(picture)
    fits = shades.ndim == 3 and shades.shape[-1] == channels and shades.size and shades.dtype == np.uint8
    rule = f"`images` must hold paths, bytes, or uint8 arrays `(height, width, {channels})`."
    check(fits, rule, dtype=shades.dtype, shape=shades.shape)
    return tf.io.encode_png(shades).numpy()


def _pixels(content):
    """Returns the number of pixels that the header of a JPEG or PNG file names, an int64 scalar.

    An error is raised for a file of another kind.
    """

    def of_jpeg():
        return tf.reduce_prod(tf.io.extract_jpeg_shape(content, tf.int64)[:2])

    def of_png():
        with tf.control_dependencies([tf.debugging.assert_equal(tf.strings.substr(content, 0, 8), PNG)]):
            sizes = tf.io.decode_raw(tf.strings.substr(content, 16, 8), tf.int32, little_endian=False)
        return tf.reduce_prod(tf.cast(sizes, tf.int64))

    return tf.cond(tf.image.is_jpeg(content), of_jpeg, of_png)
