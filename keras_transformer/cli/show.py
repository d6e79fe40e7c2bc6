"""The options of the command `show`, and the images that it reads."""

import argparse

from keras_transformer.checks import check
from keras_transformer.cli.command_parser import OPTIONAL, InputPath

# Number of pixels of an image file. A small file can hold many.
MOST_PIXELS = 2**26
# The first bytes of PNG, JPEG, BMP and GIF files. TensorFlow reads other kinds too, whose size would not be checked.
BEGINNINGS = (b"\x89PNG", b"\xff\xd8\xff", b"BM", b"GIF8")


def add_options(parser):
    """Adds the options of `show` to its parser, without those of the search."""
    parser.add_argument("run", metavar="RUN", type=InputPath, help="folder of a run, or of a saved model")
    parser.add_argument(
        "inputs", metavar="TEXT", nargs="+", help="text to read; for an image classifier an image file"
    )
    parser.add_argument("--output", metavar="FILE.html", required=True, help="the page", **OPTIONAL)
    parser.add_argument(
        "--live",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="put a translator into the page, so that its reader can type other texts",
    )
    parser.add_argument(
        "--precision",
        choices=("float16", "int8"),
        help="how the page stores matrices (default: float16, or int8 if the page would be too large)",
        **OPTIONAL,
    )
    parser.add_argument(
        "--language", choices=("en", "ko"), default="en", help="language of the page's own texts"
    )


def read_image(path, channels):
    """Reads an image file.

    Args:
        path: Path of a PNG, JPEG, BMP or GIF file.
        channels: Number of channels, 1 or 3.

    Returns:
        uint8 `(height, width, channels)`; of a GIF the first picture.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it holds no image.
    """
    import numpy as np
    import tensorflow as tf

    from keras_transformer.untrusted import read_small

    content = read_small(path)
    rule = f"{path} must be a PNG, JPEG, BMP or GIF file."
    check(content.startswith(BEGINNINGS), rule, first_bytes=content[:12])
    try:
        # TensorFlow itself refuses a large BMP or GIF.
        size = (1, 1)
        if content.startswith(b"\x89PNG"):
            size = np.frombuffer(content[16:24].ljust(8, b"\0"), ">u4").tolist()
        elif content.startswith(b"\xff\xd8\xff"):
            size = tf.image.extract_jpeg_shape(content)[:2].numpy().tolist()
        check(size[0] * size[1] <= MOST_PIXELS, f"{path} must have at most {MOST_PIXELS} pixels.", size=size)
        return tf.io.decode_image(content, channels, expand_animations=False).numpy()
    except tf.errors.InvalidArgumentError as error:
        raise ValueError(f"{rule[:-1]}: {error.message:.200}") from None
