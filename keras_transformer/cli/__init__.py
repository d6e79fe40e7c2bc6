"""The command line `keras-transformer`."""

from keras_transformer.cli.main import main

__all__ = ["main"]
