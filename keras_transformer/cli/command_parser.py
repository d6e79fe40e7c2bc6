"""The parser of a command, and what its options have in common."""

import argparse
import difflib
import os
import re

# Of an option that is not among the parsed options unless it was given.
OPTIONAL = {"default": argparse.SUPPRESS}
# For a group whose options are all optional.
NO_DEFAULT = {"argument_default": argparse.SUPPRESS}


class CommandParser(argparse.ArgumentParser):
    """A parser that refuses `--name=--`. Before Python 3.13, argparse drops that value."""

    def parse_known_args(self, args=None, namespace=None):
        options, unknown = super().parse_known_args(args, namespace)
        for action in self._actions:
            if action.nargs is None and getattr(options, action.dest, None) == []:
                self.error(
                    f"argument {'/'.join(action.option_strings) or action.dest}: expected one argument"
                )
        return options, unknown

    def refuse(self, unknown):
        """Ends with an error for unknown options, and names the options that are spelt alike."""
        message = f"unrecognized arguments: {' '.join(unknown)}"
        for word in unknown:
            name = word.partition("=")[0].replace("_", "-")
            alike = (
                difflib.get_close_matches(name, self._option_string_actions, n=1) if name[:1] == "-" else ()
            )
            message += "".join(f". Did you mean {option}?" for option in alike)
        self.error(message)

    def spelled(self, message):
        """Returns a message with the options of this command in place of the arguments of Python.

        >>> parser = CommandParser()
        >>> _ = parser.add_argument("--vocab-size")
        >>> parser.spelled("`vocab_size` must be above the length of `symbols`.")
        '--vocab-size must be above the length of `symbols`.'
        """

        def option_of(found):
            option = f"--{found[1].replace('_', '-')}"
            return option if option in self._option_string_actions else found[0]

        return re.sub(r"`(\w+)`", option_of, message)

    def check_input_paths(self, options):
        """Raises `ValueError` if an `InputPath` among the parsed options is missing."""
        for action in self._actions:
            given = getattr(options, action.dest, None)
            for value in given if isinstance(given, list) else [given]:
                if isinstance(value, InputPath) and not os.path.exists(value):
                    name = (
                        action.option_strings[-1] if action.option_strings else action.metavar or action.dest
                    )
                    raise ValueError(
                        f"{name} must be a file or a folder that exists. Received: {str(value)!r:.500}."
                    )


class InputPath(str):
    """The path of a file or a folder that a command reads: the type of an option."""
