"""Callbacks and scores for `model.fit`."""

from keras_transformer.training.checkpoints import Checkpoint, latest_checkpoint
from keras_transformer.training.progress import Progress
from keras_transformer.training.scores import corpus_scores

__all__ = ["Checkpoint", "Progress", "corpus_scores", "latest_checkpoint"]
