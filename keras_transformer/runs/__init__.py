"""Training runs: the recipe, the folder that holds everything, and training that resumes where it stopped."""

from keras_transformer.runs.average import average
from keras_transformer.runs.recipe import Recipe
from keras_transformer.runs.results import read_history
from keras_transformer.runs.train import train
from keras_transformer.runs.vocabulary import VocabularyChange, change_vocabulary
from keras_transformer.training import Diverged, Terminated

__all__ = [
    "Diverged",
    "Recipe",
    "Terminated",
    "VocabularyChange",
    "average",
    "change_vocabulary",
    "read_history",
    "train",
]
