"""Epochs of batches to a `tf.data` pipeline."""

import tensorflow as tf


def dataset_of(batches_of, steps, signature, first_epoch=0, epochs=None, first_step=0):
    """Batches for `model.fit`, prefetched, each epoch in its own order.

    Args:
        batches_of: `batches_of(epoch, skipped)` yields an epoch's batches but for the first so many.
        steps: Number of batches in an epoch.
        signature: A `tf.TensorSpec` for each part of a batch.
        first_epoch: Number of the epoch to begin with.
        epochs: How many; None for ever.
        first_step: Batches of the first epoch to leave out.

    Returns:
        A `tf.data.Dataset`.
    """

    def generate():
        epoch, skipped = first_epoch, first_step
        while epochs is None or epoch < first_epoch + epochs:
            yield from batches_of(epoch, skipped)
            epoch, skipped = epoch + 1, 0

    dataset = tf.data.Dataset.from_generator(generate, output_signature=signature)
    count = tf.data.INFINITE_CARDINALITY if epochs is None else steps * epochs - first_step
    return dataset.apply(tf.data.experimental.assert_cardinality(count)).prefetch(4)
