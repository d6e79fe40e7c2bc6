"""The folder of a training run: whose it is, what is done, and what can be gone on with."""

import json
from pathlib import Path

import numpy as np

from keras_transformer.files import LOCK, replaced, temporaries
from keras_transformer.results import read_history, val_perplexities
from keras_transformer.serving.loading import load_model
from keras_transformer.serving.translator import Translator
from keras_transformer.text import TOKENIZERS
from keras_transformer.training import checkpoints

DESCRIPTION = "run.json"


class RunFolder:
    """What a run has left in its folder, read anew with each question.

    Args:
        path: Of the folder, which need not be there yet.
    """

    def __init__(self, path):
        self.path = Path(path)

    def __str__(self):
        return str(self.path)

    def check(self, description, recipe):
        """Raises `ValueError` unless the folder is free, or holds the run of this description and recipe."""
        path = self.path / DESCRIPTION
        if not path.exists():
            if self.path.exists() and set(self.path.iterdir()) - {*temporaries(self.path), self.path / LOCK}:
                raise ValueError(f"`folder` must be new, empty, or a run's. {self} holds other files.")
            return
        try:
            before = json.loads(path.read_text(encoding="utf-8"))
            changed = recipe.changes(before["recipe"])
            for name in ("pairs", "val_pairs"):
                if before[name] != description[name]:
                    numbers = [(side[name] or {"number": "none"})["number"] for side in (before, description)]
                    changed.append(f"{name}: {numbers[0]}, now {numbers[1]} or others")
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is not a run's description: {error!r}") from None
        if changed and self.checkpoints():
            raise ValueError(
                f"{self} holds a run of another recipe; use that or another folder. Changed: {'; '.join(changed)}."
            )

    def describe(self, description):
        """Brings the description of a run that has begun up to date."""
        path = self.path / DESCRIPTION
        if path.exists() and json.loads(path.read_text(encoding="utf-8"))["recipe"] != description["recipe"]:
            self._write_description(description)

    def _write_description(self, description):
        with replaced(self.path / DESCRIPTION) as temporary:
            temporary.write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")

    def begin(self, recipe, description, tokenizers):
        """Writes what a run has before its first step: its description and its tokenizers."""
        self._write_description(description)
        for path, tokenizer in zip(self._tokenizer_paths(recipe), tokenizers, strict=False):
            with replaced(path) as temporary:
                tokenizer.save(temporary)

    def tokenizers(self, recipe):
        """The source's and the target's."""
        kind = TOKENIZERS["ByteTokenizer" if recipe.tokenizer == "byte" else "SentencePieceTokenizer"]
        loaded = [kind.load(path) for path in self._tokenizer_paths(recipe)]
        return loaded[0], loaded[-1]

    def _tokenizer_paths(self, recipe):
        two = recipe.separate_vocabularies and recipe.tokenizer != "byte"
        return [self.path / f"{side}_tokenizer.model" for side in ("source", "target")[: 2 if two else 1]]

    def checkpoints(self):
        """All of them, the newest first."""
        return checkpoints(self.path)

    def whole_epochs(self):
        """The checkpoints of whole epochs, the newest first."""
        return [saved for saved in self.checkpoints() if not saved.steps]

    @property
    def epochs_done(self):
        return max((saved.epochs for saved in self.checkpoints()), default=0)

    def is_finished(self, recipe):
        """Whether all epochs are done, or none of the last few was the best."""
        done = self.epochs_done
        if done >= recipe.epochs:
            return True
        found = val_perplexities(read_history(self.path)[:done])
        return (
            recipe.patience is not None
            and bool(found)
            and len(found) - 1 - int(np.argmin(found)) >= recipe.patience
        )

    def lacks_average(self, recipe):
        """Whether the recipe wants a mean of the last epochs, and the translator is none that ends with the newest."""
        if recipe.average_last == 1:
            return False
        try:
            averaged = json.loads((self.path / Translator.DESCRIPTION).read_text(encoding="utf-8")).get(
                "averaged_epochs"
            )
        except (OSError, ValueError, AttributeError):
            averaged = None
        return not averaged or averaged[-1] != self.epochs_done

    def restored(self, say):
        """The model of the newest checkpoint that can be read, compiled, and its `SavedState`."""
        damage = []
        for saved in self.checkpoints():
            try:
                model = load_model(saved.path, compile=True)
            except ValueError as error:
                damage.append(str(error))
                say(f"warning: {error} Going back to the checkpoint before it.")
            else:
                # Keras makes the metrics with their first batch; one of an unfinished epoch is to be restored before.
                model.compute_metrics(
                    None, np.zeros((1, 1), "int32"), np.zeros((1, 1, model.target_vocab_size))
                )
                return model, saved
        raise ValueError(f"No checkpoint of {self} can be read. {' '.join(damage)}")
