"""Strategies of `tf.distribute` with which `model.fit` of Keras 3 works on several devices."""

import json
import os

import tensorflow as tf


class _Reductions:
    """Answers two calls of `strategy.reduce` that Keras 3.15 makes and TensorFlow's strategies refuse.

    Without it `fit` fails before the first step. Nothing of Keras or TensorFlow is replaced. Remove this class when
    Keras works with TensorFlow's own strategies.
    """

    def reduce(self, reduce_op, value, axis=None):
        local_results = self.experimental_local_results
        if isinstance(value, tuple | list | dict):
            # Keras passes a whole batch when it builds the model, and reads only shapes and dtypes of the result.
            # The part of one replica has them. A true reduction would fail for parts of different shapes, and
            # would wait for other workers.
            return tf.nest.map_structure(lambda part: local_results(part)[0], value)
        if axis == 0 and local_results(value)[0].shape.rank == 0:
            # A scalar that a step logs has no axis: take the mean over the replicas.
            axis = None
        return super().reduce(reduce_op, value, axis)


class Mirrored(_Reductions, tf.distribute.MirroredStrategy):
    """`tf.distribute.MirroredStrategy`, the devices of one machine, for batches with any number of rows.

    TensorFlow's own class makes `fit` fail if the number of rows of the first batch is not divisible by the number of
    devices.

    Args:
        devices: List of device names such as `["GPU:0", "GPU:1"]`; all GPUs when None.
        cross_device_ops: A `tf.distribute.CrossDeviceOps`, or None for TensorFlow's choice.

    Example:

        with Mirrored().scope():
            model = Transformer(8000)
            model.compile(optimizer, MaskedCrossentropy())
        model.fit(dataset)
    """


class MultiWorker(_Reductions, tf.distribute.MultiWorkerMirroredStrategy):
    """`tf.distribute.MultiWorkerMirroredStrategy`, the devices of several machines, for `fit` and `evaluate`.

    TensorFlow's own class makes both fail. Every worker runs the same program. The environment variable `TF_CONFIG`
    lists all workers and the index of this one. Create, load and compile the model in `strategy.scope()`.

    Args:
        cluster_resolver: A `tf.distribute.cluster_resolver.ClusterResolver`; when None, `TF_CONFIG` is read.
        communication_options: A `tf.distribute.experimental.CommunicationOptions`, or None for TensorFlow's choice.

    Raises:
        ValueError: If `cluster_resolver` is None and `TF_CONFIG` does not list the workers. TensorFlow's own class
            would train on this machine alone, without a warning.
    """

    def __init__(self, cluster_resolver=None, communication_options=None):
        if cluster_resolver is None:
            _check_config(os.environ.get("TF_CONFIG"))
        super().__init__(cluster_resolver, communication_options)

    @property
    def is_chief(self):
        """Whether this worker saves: the worker of type "chief", or worker 0 if there is no such type."""
        resolver = self.cluster_resolver
        jobs = resolver.cluster_spec().jobs
        return resolver.task_type == ("chief" if "chief" in jobs else "worker") and resolver.task_id == 0


def _check_config(text):
    try:
        config = json.loads(text or "{}")
        is_listed = config["task"]["index"] < len(config["cluster"][config["task"]["type"]])
    except (ValueError, KeyError, TypeError):
        is_listed = False
    if not is_listed:
        raise ValueError(
            "`TF_CONFIG` must list the workers and the index of this one, such as "
            '{"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 0}}. '
            f"Received: TF_CONFIG={text!r}."
        )
