"""The average of a run's last epochs."""

from keras_transformer.checks import check_count
from keras_transformer.files import locked
from keras_transformer.runs.folder import RunFolder
from keras_transformer.runs.results import serving_translator
from keras_transformer.serving import Translator
from keras_transformer.training import average_weights


def average(folder, last=None, say=print):
    """Gives a run's translator the mean weights of its newest epochs; the checkpoints stay unchanged.

    The paper averages the last 5 or 20 checkpoints: "Attention Is All You Need", section 6.1.

    Args:
        folder: The folder of a run, a path.
        last: How many epochs to average, an int. None averages all whose checkpoints are kept. A run keeps the
            checkpoints of two epochs, or of `average_last` epochs if its recipe's `average_last` is larger.
        say: A function that is called with each line of the report, a str.

    Raises:
        ValueError: If the folder holds no checkpoint of a whole epoch, or fewer than `last`, or another process trains
            in it.
    """
    folder = RunFolder(folder)
    # Checked before the lock, which writes a file: another folder stays unchanged.
    _checked_number(folder, last)
    with locked(folder.path):
        average_in_locked_folder(folder, last, say)


def average_in_locked_folder(folder, last, say):
    """Does what `average` does, for a caller that has locked the folder.

    Args:
        folder: A `RunFolder`.
        last: How many epochs to average, or None.
        say: A function that is called with each line of the report, a str.
    """
    last = _checked_number(folder, last)
    oldest_first = folder.whole_epochs()[last - 1 :: -1]
    translator = Translator.load(folder.path)
    model = average_weights([saved.path for saved in oldest_first])
    serving_translator(translator, model).write_into(
        folder.path, averaged_epochs=[saved.epochs for saved in oldest_first]
    )
    say(f"{folder}: the translator has the mean weights of the last {last} epochs.")


def _checked_number(folder, last):
    """Returns how many epochs to average, or raises `ValueError` if the folder does not keep so many."""
    kept = folder.whole_epochs()
    if not kept:
        raise ValueError(
            "`folder` must be the folder of a run with a checkpoint of at least one whole epoch. "
            f"Received: folder={folder}."
        )
    last = len(kept) if last is None else last
    check_count(1, last=last)
    if last > len(kept):
        raise ValueError(
            f"`last` must be at most {len(kept)}, the number of checkpoints in {folder}. A run with a larger "
            f"`average_last` keeps more. Received: last={last}."
        )
    return last
