"""The options of the commands that answer lines with a saved model."""

from keras_transformer.cli.command_parser import OPTIONAL

PAIRS = "each line holds a pair of texts, text<TAB>second, for a model that reads pairs"


def add_sizes(parser):
    """Adds the sizes of batches and windows of lines."""
    parser.add_argument("--batch-size", type=int, default=32, help="number of lines in a batch")
    parser.add_argument(
        "--window",
        type=int,
        default=4096,
        help="number of lines that are sorted by length and written together",
    )


def add_answer_options(parser):
    """Adds the options that every command has that answers lines with a saved model."""
    parser.add_argument("run", metavar="FOLDER", help="folder of a saved model, or of the command `convert`")
    add_sizes(parser)
    parser.add_argument(
        "--max-source-length", type=int, help="number of tokens of a text that are read", **OPTIONAL
    )


def fill_classify(parser):
    """Adds the options of `classify`."""
    add_answer_options(parser)
    parser.add_argument(
        "--probabilities",
        action="store_true",
        help="the probability of every class, as a JSON object on each line",
    )


def fill_embed(parser):
    """Adds the options of `embed`."""
    add_answer_options(parser)
    parser.add_argument(
        "--output",
        metavar="FILE.npy",
        help="new file for the vectors, float32 (lines, d_model); a line that failed is NaN",
        **OPTIONAL,
    )
