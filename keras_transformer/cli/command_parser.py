"""A parser that does little before it is used."""

import argparse

from keras_transformer.cli import logs
from keras_transformer.cli.tensorflow_import import import_tensorflow

# Of an option that is not among the parsed options unless it was given.
OPTIONAL = {"default": argparse.SUPPRESS}
NO_DEFAULT = {"argument_default": argparse.SUPPRESS}  # of a group, whose options are all optional


class CommandParser(argparse.ArgumentParser):
    """The parser of a command. It gets its options when it parses: some of them need TensorFlow."""

    fill = None
    needs_tensorflow = True

    def parse_known_args(self, args=None, namespace=None):
        if self.fill is not None:
            if self.needs_tensorflow:
                import_tensorflow()
            fill, self.fill = self.fill, None
            fill(self)
            logs.add_options(self)
        options, unknown = super().parse_known_args(args, namespace)
        for action in self._actions:
            # Before Python 3.13, argparse drops the value of `--name=--`.
            if action.nargs is None and getattr(options, action.dest, None) == []:
                self.error(
                    f"argument {'/'.join(action.option_strings) or action.dest}: expected one argument"
                )
        return options, unknown
