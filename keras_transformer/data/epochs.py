"""A `tf.data` pipeline over epochs of batches."""

import tensorflow as tf


def dataset_of(batches_of, steps, signature, first_epoch=0, epochs=None, first_step=0):
    """Makes a dataset for `model.fit` from a function that gives the batches of an epoch.

    Args:
        batches_of: A function of `(epoch, first_step)` that returns an iterable of the batches of this epoch, without
            the first `first_step` of them.
        steps: Number of batches in an epoch.
        signature: A `tf.TensorSpec` for each part of a batch, in the structure of a batch.
        first_epoch: Number of the first epoch, from 0.
        epochs: Number of epochs; None for an endless dataset.
        first_step: Number of batches to leave out of the first epoch.

    Returns:
        A `tf.data.Dataset` of batches, prefetched, whose cardinality is known.
    """

    def generate():
        epoch, skipped = first_epoch, first_step
        while epochs is None or epoch < first_epoch + epochs:
            yield from batches_of(epoch, skipped)
            epoch, skipped = epoch + 1, 0

    dataset = tf.data.Dataset.from_generator(generate, output_signature=signature)
    count = tf.data.INFINITE_CARDINALITY if epochs is None else steps * epochs - first_step
    return dataset.apply(tf.data.experimental.assert_cardinality(count)).prefetch(4)
