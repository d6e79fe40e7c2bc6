"""Callbacks and scores for `model.fit`."""

from keras_transformer.training.checkpoints import Checkpoint, latest_checkpoint
from keras_transformer.training.progress import Progress
from keras_transformer.training.scores import corpus_scores
from keras_transformer.training.seeds import EpochSeeds

__all__ = ["Checkpoint", "EpochSeeds", "Progress", "corpus_scores", "latest_checkpoint"]
