"""Reads image files for commands."""

from pathlib import Path


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
