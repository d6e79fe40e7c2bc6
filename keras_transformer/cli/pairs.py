"""The options that name files of sentence pairs, and reading these files."""

import argparse

from keras_transformer.cli.command_parser import NO_DEFAULT, InputPath


def add_pairs(parser):
    """Adds the options that name the files of pairs; returns their group."""
    data = parser.add_argument_group("data", **NO_DEFAULT)
    data.add_argument("--source", metavar="FILE", type=InputPath, help="source sentences")
    data.add_argument("--target", metavar="FILE", type=InputPath, help="their translations, line by line")
    about = "instead of --source and --target: lines source<TAB>target, or a table with --columns"
    data.add_argument("--pairs", metavar="FILE", type=InputPath, help=about)
    about = (
        "each file of pairs is a table, .csv or .tsv, whose first line names its columns: read these two. Rows in "
        "which one of them is empty are left out"
    )
    data.add_argument("--columns", metavar="SOURCE,TARGET", type=_columns, help=about)
    return data


def _columns(text):
    """Parses the names of columns.

    >>> _columns("ko,en")
    ('ko', 'en')
    """
    columns = tuple(name.strip() for name in text.split(","))
    if len(columns) not in (2, 3) or not all(columns):
        raise argparse.ArgumentTypeError(f"names with commas between them are needed, not {text!r:.100}")
    return columns


def read_pairs(options, prefix="", required=True):
    """Reads the pairs from two files or one table; without files it returns None, or raises if they are required."""
    from keras_transformer.data import read_parallel, read_table, read_tsv

    source, target, pairs = (
        getattr(options, f"{prefix}{name}", None) for name in ("source", "target", "pairs")
    )
    dashed = prefix.replace("_", "-")
    if pairs and (source or target):
        raise ValueError(f"Give --{dashed}pairs, or --{dashed}source and --{dashed}target, not both.")
    columns = getattr(options, "columns", None)
    if columns and not any(hasattr(options, name) for name in ("pairs", "val_pairs")):
        raise ValueError("--columns names the columns of --pairs: give --pairs, too.")
    if columns and len(columns) != 2:
        raise ValueError(f"--columns must name the two columns of --pairs. Received: {','.join(columns)}.")
    if pairs and columns:
        return read_table(pairs, *columns)
    if pairs:
        if pairs.lower().endswith(".csv"):
            raise ValueError(f"{pairs} is a CSV file: name its two columns, such as --columns source,target.")
        return read_tsv(pairs)
    if source and target:
        return read_parallel(source, target)
    if source or target or required:
        raise ValueError(f"Give --{dashed}source and --{dashed}target, or --{dashed}pairs.")
    return None
