"""The strategies of `tf.distribute` that copy a model, as `model.fit` of Keras 3 needs them."""

import json
import os

import tensorflow as tf


class _Reductions:
    """Two reductions that Keras 3.15 asks a strategy for and TensorFlow's refuses, so that `fit` stops before a step.

    Nothing of Keras or TensorFlow is replaced. When Keras works with TensorFlow's classes, take those again.
    """

    def reduce(self, reduce_op, value, axis=None):
        first = self.experimental_local_results
        if isinstance(value, tuple | list | dict):
            # A whole batch, of which Keras reads shapes and dtypes alone, when it builds the model. One part says
            # these; the parts need not have one shape, and other workers are not waited for.
            return tf.nest.map_structure(lambda part: first(part)[0], value)
        if axis == 0 and first(value)[0].shape.rank == 0:
            axis = None  # a scalar that a step logs: the mean over the replicas, not along an axis it lacks
        return super().reduce(reduce_op, value, axis)


class Mirrored(_Reductions, tf.distribute.MirroredStrategy):
    """`tf.distribute.MirroredStrategy`, the devices of one machine, for batches of any number of rows.

    With TensorFlow's own class `fit` fails where the rows of the first batch do not divide by the number of devices.

    Args:
        devices: Names such as `["GPU:0", "GPU:1"]`; all GPUs when None.
        cross_device_ops: As TensorFlow's.
    """


class MultiWorker(_Reductions, tf.distribute.MultiWorkerMirroredStrategy):
    """`tf.distribute.MultiWorkerMirroredStrategy`, the devices of several machines, with `fit` and `evaluate`.

    With TensorFlow's own class both fail. Every worker runs the same program; `TF_CONFIG` names the workers and which
    of them this process is. The model is made, loaded and compiled in `strategy.scope()`.

    Args:
        cluster_resolver: As TensorFlow's; `TF_CONFIG` when None.
        communication_options: As TensorFlow's.

    Raises:
        ValueError: If neither a `cluster_resolver` nor `TF_CONFIG` names the workers: TensorFlow would train alone,
            without a word.
    """

    def __init__(self, cluster_resolver=None, communication_options=None):
        if cluster_resolver is None:
            _check_config(os.environ.get("TF_CONFIG"))
        super().__init__(cluster_resolver, communication_options)

    @property
    def is_chief(self):
        """Whether this worker is the one that saves: the chief, or worker 0 where none is called so."""
        resolver = self.cluster_resolver
        jobs = resolver.cluster_spec().jobs
        return resolver.task_type == ("chief" if "chief" in jobs else "worker") and resolver.task_id == 0


def _check_config(text):
    try:
        config = json.loads(text or "{}")
        named = config["task"]["index"] < len(config["cluster"][config["task"]["type"]])
    except (ValueError, KeyError, TypeError):
        named = False
    if not named:
        raise ValueError(
            "`TF_CONFIG` must name the workers and which of them this is, such as "
            '{"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 0}}. '
            f"Received: TF_CONFIG={text!r}."
        )
