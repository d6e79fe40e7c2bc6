"""Training runs: the recipe, the folder that holds everything, and training that resumes where it stopped."""

from keras_transformer.lazy import lazy_names

_HOMES = {
    "Diverged": ".training",
    "Recipe": "recipe",
    "Terminated": ".termination",
    "TuningRecipe": "tuning_recipe",
    "VocabularyChange": "vocabulary",
    "average": "averaging",
    "change_vocabulary": "vocabulary",
    "evaluate_labels": "label_results",
    "read_history": "results",
    "train": "training",
    "tune": "tuning",
}

# The command `train --help` reads a recipe, which needs no Keras.
__all__ = sorted(_HOMES)
__getattr__, __dir__ = lazy_names(__package__, _HOMES)
