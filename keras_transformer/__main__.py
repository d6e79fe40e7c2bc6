"""Runs the command line: `python -m keras_transformer` does the same as `keras-transformer`."""

import sys

from keras_transformer.cli import main

sys.exit(main())
