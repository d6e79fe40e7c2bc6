"""Callbacks and scores for `model.fit`."""

from keras_transformer.training.checkpoints import Checkpoint, latest_checkpoint
from keras_transformer.training.progress import Progress
from keras_transformer.training.scores import corpus_scores
from keras_transformer.training.seeds import EpochSeeds
from keras_transformer.training.tensorboard import TensorBoard

__all__ = ["Checkpoint", "EpochSeeds", "Progress", "TensorBoard", "corpus_scores", "latest_checkpoint"]
