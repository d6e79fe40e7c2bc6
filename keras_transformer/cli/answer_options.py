"""The options of the commands that answer lines with a saved model."""

from keras_transformer.cli.command_parser import NO_DEFAULT, OPTIONAL, InputPath
from keras_transformer.cli.search_options import add_search_options
from keras_transformer.cli.subtitles import FORMATS

SPLIT_SENTENCES = (
    "translate each sentence of a line alone; the language of the input, such as en (needs sentencex)"
)
FOLDER_TO_TRANSLATE_WITH = "folder of a run, or of a saved translator"
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


def add_max_source_length(parser):
    """Adds the limit of the texts that are read."""
    parser.add_argument(
        "--max-source-length",
        type=int,
        help="number of tokens of a text that are read (default: as saved)",
        **OPTIONAL,
    )


def add_max_length(parser):
    """Adds the limit of the texts that are written."""
    parser.add_argument(
        "--max-length",
        type=int,
        help="largest number of tokens in an answer (default: as saved, or twice the text's tokens plus 16)",
        **OPTIONAL,
    )


def add_answer_options(parser):
    """Adds the options that every command has that answers lines with a saved model."""
    parser.add_argument(
        "run", metavar="FOLDER", type=InputPath, help="folder of a saved model, or of the command `convert`"
    )
    add_sizes(parser)
    add_max_source_length(parser)


def fill_translate(parser):
    """Adds the options of `translate`."""
    parser.add_argument("run", metavar="RUN", type=InputPath, help=FOLDER_TO_TRANSLATE_WITH)
    files = parser.add_argument_group("files", **NO_DEFAULT)
    files.add_argument(
        "--input",
        metavar="FILE",
        type=InputPath,
        help="file to translate instead of standard input, plain or .gz",
    )
    files.add_argument(
        "--output",
        metavar="FILE",
        help="file for the translations; must not exist, appears when it is complete",
    )
    files.add_argument(
        "--restart",
        action="store_true",
        help="discard an unfinished translation that was started with other options or another input",
    )
    parser.add_argument("--split-sentences", metavar="LANGUAGE", help=SPLIT_SENTENCES, **OPTIONAL)
    terms = parser.add_argument_group("terms", **NO_DEFAULT)
    terms.add_argument(
        "--glossary",
        metavar="FILE",
        type=InputPath,
        help="lines term<TAB>translation: a translation of a line with the term holds its translation",
    )
    terms.add_argument(
        "--copy",
        metavar="REGEX",
        help="text of a line that its translation holds as it is, such as https?://[^ ]+. The pattern is "
        "yours: it has no limit of time, and one such as (a+)+! may never end",
    )
    terms.add_argument(
        "--replace-unknown",
        action="store_true",
        help="write the source word with the greatest attention in place of each unknown token",
    )
    add_sizes(parser)
    add_max_source_length(parser)
    add_max_length(parser)
    add_search_options(parser)


def fill_transcribe(parser):
    """Adds the options of `transcribe`."""
    parser.add_argument(
        "run",
        metavar="FOLDER",
        type=InputPath,
        help="folder of a saved transcriber, or of the command `convert`",
    )
    parser.add_argument(
        "--language",
        help="code of the language, such as ko (default: the one that the model hears)",
        **OPTIONAL,
    )
    parser.add_argument(
        "--task",
        choices=("transcribe", "translate"),
        help="translate: in English (default: as saved)",
        **OPTIONAL,
    )
    parser.add_argument(
        "--format",
        choices=FORMATS,
        default="txt",
        help="a line of text, or of JSON with times, for each recording; or subtitles of one",
    )
    parser.add_argument(
        "--words", action="store_true", help="write the times of words, with --format json, srt or vtt"
    )
    parser.add_argument("--batch-size", type=int, default=8, help="number of recordings in a batch")
    add_search_options(parser)


def fill_caption(parser):
    """Adds the options of `caption`."""
    parser.add_argument("run", metavar="FOLDER", type=InputPath, help="folder of a saved image writer")
    parser.add_argument("--batch-size", type=int, default=32, help="number of pictures in a batch")
    add_search_options(parser)


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
