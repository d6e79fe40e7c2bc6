"""Callbacks, optimizers and scores for `model.fit`."""

from keras_transformer.optimizers import Adam, AdamW, Muon
from keras_transformer.termination import Terminated, Termination
from keras_transformer.training.adapters import add_adapters
from keras_transformer.training.checkpoints import (
    Checkpoint,
    SavedState,
    average_weights,
    checkpoints,
    load_checkpoint,
)
from keras_transformer.training.divergence import Diverged, StopOnNaN, check_finite
from keras_transformer.training.label_scores import LabelScores, entity_scores, label_scores
from keras_transformer.training.progress import Progress
from keras_transformer.training.scores import corpus_scores
from keras_transformer.training.tensorboard import TensorBoard

__all__ = [
    "Adam",
    "AdamW",
    "Checkpoint",
    "Diverged",
    "LabelScores",
    "Muon",
    "Progress",
    "SavedState",
    "StopOnNaN",
    "TensorBoard",
    "Terminated",
    "Termination",
    "add_adapters",
    "average_weights",
    "check_finite",
    "checkpoints",
    "corpus_scores",
    "entity_scores",
    "label_scores",
    "load_checkpoint",
]
