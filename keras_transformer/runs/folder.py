"""The folder of a training run: its description, its tokenizers, its checkpoints."""

import contextlib
import dataclasses
from pathlib import Path

import numpy as np

from keras_transformer.checks import warn
from keras_transformer.files import holds_others, write_json
from keras_transformer.runs.model import check_compiled
from keras_transformer.runs.recipe import PLANNED
from keras_transformer.runs.results import read_history, val_perplexities
from keras_transformer.serving.translator import Translator
from keras_transformer.training import SavedState, checkpoints, load_checkpoint
from keras_transformer.untrusted import read_json

DESCRIPTION = "run.json"
# The entry of the description with the tokenizers and the arguments of the translator.
TRANSLATOR = "translator"


@contextlib.contextmanager
def says_how_to_resume(folder, work, say):
    """Reports what is saved when a user interrupts the training inside a `with`.

    Args:
        folder: The folder of the checkpoints, a `Path`.
        work: What is resumed, such as "run".
        say: A function that is called with the line, a str.
    """
    try:
        yield
    except KeyboardInterrupt:
        saved = next(iter(checkpoints(folder)), SavedState(None))
        say(f"{folder}: {saved} are saved. The same command resumes the {work}.")
        raise


class RunFolder:
    """The folder of a run. Each method reads the folder again.

    A description is the content of `run.json`, a dict: the recipe, fingerprints of the pairs, versions.

    Args:
        path: The folder's path. The folder need not exist yet.
    """

    def __init__(self, path):
        self.path = Path(path)

    def __str__(self):
        return str(self.path)

    def check(self, recipe, description):
        """Raises `ValueError` unless a run with this recipe and these pairs can begin or resume here."""
        path = self.path / DESCRIPTION
        if not path.exists():
            if holds_others(self.path):
                raise ValueError(
                    f"`folder` must be new, empty, or the folder of a run. {self} holds other files."
                )
            return
        try:
            before = read_json(path)
            changed = recipe.changes(before["recipe"])
            for name in ("pairs", "val_pairs"):
                if before[name] != description[name]:
                    old, new = (
                        (each[name] or {"number": "none"})["number"] for each in (before, description)
                    )
                    changed.append(f"{name}: {old}, now {new} or others")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} cannot be read as the description of a run: {error!r:.500}") from None
        if changed and self.checkpoints():
            raise ValueError(
                f"{self} holds a run of another recipe. Use that recipe or another folder. "
                f"Changed: {'; '.join(changed)}."
            )

    def planned(self, recipe):
        """Returns the recipe with the epochs and the warm-up of the run, if it has begun and the recipe names none."""
        if not self.checkpoints():
            return recipe
        try:
            earlier = read_json(self.path / DESCRIPTION)["recipe"]
            missing = [name for name in PLANNED if getattr(recipe, name) is None]
            return dataclasses.replace(recipe, **{name: earlier[name] for name in missing})
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{self.path / DESCRIPTION} cannot be read as the description of a run: {error!r:.500}"
            ) from None

    def begin(self, description, translator):
        """Writes the files that a run needs before its first step: its tokenizers and its description.

        Args:
            description: The description, a dict.
            translator: The `Translator` of the run. Its tokenizers and its options are kept, but not its model.
        """
        written = {**translator.write_tokenizers(self.path), "arguments": translator.describe()}
        self._write_description({**description, TRANSLATOR: written})

    def update_description(self, description):
        """Writes the description of a run that has begun, if its recipe has changed."""
        path = self.path / DESCRIPTION
        before = read_json(path) if path.exists() else description
        if before["recipe"] != description["recipe"]:
            self._write_description({**before, **description})

    def _write_description(self, description):
        write_json(self.path / DESCRIPTION, description)

    def translator(self, model):
        """Makes the `Translator` of the run with a model.

        Args:
            model: The model of the run.

        Raises:
            ValueError: If a tokenizer or the description cannot be read.
        """
        try:
            description = read_json(self.path / DESCRIPTION)[TRANSLATOR]
            tokenizers = Translator.read_tokenizers(description, self.path)
            return Translator(model, **tokenizers, **Translator.arguments_from(description, self.path))
        except (ValueError, OSError, KeyError, TypeError) as error:
            raise ValueError(f"{self} holds no tokenizers to resume with: {error!r:.500}") from None

    @property
    def pairs(self):
        """The number and the fingerprint of the pairs that the run trains with, a dict; None where they are unknown."""
        try:
            return read_json(self.path / DESCRIPTION)["pairs"]
        except (ValueError, KeyError):
            return None

    def checkpoints(self):
        """Returns all checkpoints, the newest first, a list of `SavedState`."""
        return checkpoints(self.path)

    def whole_epochs(self):
        """Returns the checkpoints of whole epochs, the newest first, a list of `SavedState`."""
        return [saved for saved in self.checkpoints() if not saved.steps]

    @property
    def epochs_done(self):
        """How many whole epochs are done, an int."""
        return max((saved.epochs for saved in self.checkpoints()), default=0)

    def is_finished(self, recipe):
        """Returns whether all epochs are done, or the last `patience` epochs brought no better perplexity."""
        done = self.epochs_done
        if recipe.epochs is not None and done >= recipe.epochs:
            return True
        measured = val_perplexities(read_history(self.path)[:done])
        if recipe.patience is None or not measured:
            return False
        epochs_since_best = len(measured) - 1 - int(np.argmin(measured))
        return epochs_since_best >= recipe.patience

    def lacks_average(self, recipe):
        """Returns whether the recipe asks for averaged weights that the translator does not have yet."""
        if recipe.average_last == 1:
            return False
        try:
            description = read_json(self.path / Translator.DESCRIPTION)
            averaged = description.get("averaged_epochs")
        except ValueError:
            averaged = None
        # A mean that ends with the newest epoch counts, however many epochs `average` was asked for.
        return not averaged or averaged[-1] != self.epochs_done

    def restore(self):
        """Loads the newest checkpoint that can be read. Warns of each that cannot be read.

        Returns:
            The compiled model, and the checkpoint's `SavedState`.

        Raises:
            ValueError: If no checkpoint can be read.
        """
        errors = []
        for saved in self.checkpoints():
            try:
                check_compiled(saved.path)
                model = load_checkpoint(saved.path)
            except ValueError as error:
                errors.append(str(error))
                warn(f"{error} Going back to the checkpoint before it.")
            else:
                # Keras creates the metrics with the first batch. A checkpoint within an epoch restores them earlier.
                model.compute_metrics(
                    None, np.zeros((1, 1), "int32"), np.zeros((1, 1, model.target_vocab_size))
                )
                return model, saved
        raise ValueError(f"No checkpoint of {self} can be read. {' '.join(errors)}")
