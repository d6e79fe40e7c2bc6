"""R-Drop: training that makes the distributions of two dropouts alike."""

import keras

from keras_transformer.checks import check_range
from keras_transformer.losses import mean_of_tokens, targets_and_weights, token_divergence


class RDrop:
    """Adds the argument `r_drop` to the `compile` of a model that gives logits of ids.

    Liang et al., 2021, "R-Drop: Regularized Dropout for Neural Networks". The model has `pad_id`.
    """

    r_drop = 0.0

    def compile(self, *args, r_drop=0.0, **kwargs):
        """Configures the model for training.

        Args:
            *args: Keras's arguments of `compile`.
            r_drop: Weight of R-Drop, such as the paper's 5; 0 for none. With it, a step of `fit` computes a batch
                twice, each time with its own dropout. The loss is half of the paper's equation 4: the mean of both
                losses, and half of `r_drop` times the divergence of the two distributions, the mean over the tokens
                that are not padding.
            **kwargs: Keras's arguments of `compile`.

        Raises:
            ValueError: If `r_drop` is negative.
        """
        check_range(0, r_drop=r_drop)
        self.r_drop = r_drop
        super().compile(*args, **kwargs)

    def get_compile_config(self):
        config = super().get_compile_config()
        return {**config, "r_drop": self.r_drop} if config else config

    def compile_as_saved(self, config):
        """Compiles a loaded model; Keras leaves a class with its own `compile` uncompiled."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.optimizer is not None:
            self.optimizer.build(self.trainable_variables)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        if not training or not self.r_drop:
            return loss
        other = self(x, training=True)
        other_loss = super().compute_loss(x, y, other, sample_weight, training)
        _, weights = targets_and_weights(y, y_pred, sample_weight, self.pad_id)
        divergence = mean_of_tokens(token_divergence(y_pred, other), weights)
        return (loss + other_loss + self.r_drop * divergence) / 2
