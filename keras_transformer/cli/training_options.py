"""The options of the commands that train a model."""

import argparse
import dataclasses
import types
import typing

from keras_transformer.cli.command_parser import OPTIONAL, InputPath
from keras_transformer.cli.pairs import add_pairs
from keras_transformer.runs import Recipe, TuningRecipe


def fill_train(parser):
    """Adds the options of `train`."""
    data = add_pairs(parser)
    data.add_argument("--val-source", metavar="FILE", type=InputPath, help="source sentences for validation")
    data.add_argument("--val-target", metavar="FILE", type=InputPath, help="their translations, line by line")
    data.add_argument(
        "--val-pairs",
        metavar="FILE",
        type=InputPath,
        help="instead of --val-source and --val-target: a file like that of --pairs",
    )
    parser.add_argument("--output", metavar="RUN", required=True, help="folder of the run", **OPTIONAL)
    _add_fields(parser.add_argument_group("model and recipe"), Recipe)


def fill_tune(parser):
    """Adds the options of `tune`."""
    about = "folder with config.json, safetensors files and the tokenizer's files"
    parser.add_argument("folder", metavar="FOLDER", type=InputPath, help=about)
    about = (
        "chats, a JSON object in each line (.jsonl); or a table whose first line names its columns (.csv, .tsv); or "
        "words and their labels (CoNLL)"
    )
    parser.add_argument("--data", metavar="FILE", required=True, type=InputPath, help=about, **OPTIONAL)
    about = "such a file to validate with after each epoch (default: a share of the rows)"
    parser.add_argument("--val-data", metavar="FILE", type=InputPath, help=about, **OPTIONAL)
    parser.add_argument("--output", metavar="RUN", required=True, help="folder of the tuning", **OPTIONAL)
    _add_fields(parser.add_argument_group("recipe"), TuningRecipe)


def fill_average(parser):
    """Adds the options of `average`."""
    parser.add_argument("run", metavar="RUN", type=InputPath, help="folder of a run")
    parser.add_argument(
        "--last", type=int, help="how many epochs (default: all that the run keeps)", **OPTIONAL
    )


def fill_ensemble(parser):
    """Adds the options of `ensemble`."""
    about = "folders of runs, or of saved translators, at least two, with the same tokenizers"
    parser.add_argument("runs", metavar="RUN", nargs="+", type=InputPath, help=about)
    parser.add_argument("--output", metavar="FOLDER", required=True, help="new folder", **OPTIONAL)


def _add_fields(group, recipe_class):
    """Adds one option for each field of a dataclass."""
    types_of_fields = typing.get_type_hints(recipe_class)
    for field in dataclasses.fields(recipe_class):
        option = f"--{field.name.replace('_', '-')}"
        explanation = field.metadata["help"]
        kind = types_of_fields[field.name]
        if kind is bool:
            group.add_argument(option, action="store_true", help=explanation)
            continue
        if isinstance(kind, types.UnionType):
            kind = next(each for each in kind.__args__ if each is not type(None))
        if "otherwise" in field.metadata:
            explanation += f" (default: {field.metadata['otherwise']})"
        # With neither --option nor --no-option, a field of `bool | None` stays None.
        if kind is bool:
            group.add_argument(option, action=argparse.BooleanOptionalAction, help=explanation, **OPTIONAL)
            continue
        if field.default is None and "(" not in explanation:
            explanation += " (default: the preset's)"
        group.add_argument(
            option,
            type=InputPath if field.metadata.get("is_path") else kind,
            default=field.default if field.default is not None else argparse.SUPPRESS,
            choices=field.metadata.get("choices"),
            metavar=None if "choices" in field.metadata else kind.__name__.upper(),
            help=explanation,
        )
