"""The options of the command `show`, and the images that it reads."""

import argparse
from pathlib import Path

from keras_transformer.cli.command_parser import OPTIONAL, InputPath


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
        "--language", choices=("en", "ko"), default="en", help="language of the page's own words"
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
    import tensorflow as tf

    content = Path(path).read_bytes()
    try:
        return tf.io.decode_image(content, channels, expand_animations=False).numpy()
    except tf.errors.InvalidArgumentError as error:
        raise ValueError(f"{path} must be a PNG, JPEG, BMP or GIF file: {error.message:.200}") from None
