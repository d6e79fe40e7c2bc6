"""SavedModels that a stock TensorFlow Serving runs."""

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from keras_transformer.files import replaced


def write_saved_model(module, signatures, path, xla):
    """Saves a module to a new folder, which appears whole or not at all.

    Args:
        module: A `tf.Module` that tracks all the signatures' variables and resources.
        signatures: A dict from name to `tf.function` with an input signature.
        path: The folder; must not exist.
        xla: Whether compiled functions are wanted; if not, finding one is an error.

    Raises:
        ValueError: If the graph holds an XLA op or a compiled function against `xla=False`.
    """
    with replaced(path) as temporary:
        tf.saved_model.save(module, str(temporary), signatures=signatures)
        found = compiled_parts(temporary)
        if found and not xla:
            raise ValueError(
                "The export must run where XLA is disabled, but its graph holds "
                f"{', '.join(found[:5])}. Use `xla=True` for a compiled export."
            )


def compiled_parts(path):
    """Names of the XLA ops and compiled functions in a SavedModel, sorted."""
    saved = saved_model_pb2.SavedModel()
    saved.ParseFromString((path / "saved_model.pb").read_bytes())
    found = set()
    for meta_graph in saved.meta_graphs:
        graph = meta_graph.graph_def
        nodes = list(graph.node)
        for function in graph.library.function:
            nodes += function.node_def
            if function.attr["_XlaMustCompile"].b:
                found.add(f"compiled function {function.signature.name}")
        found |= {f"op {node.op}" for node in nodes if node.op.startswith("Xla")}
        found |= {f"compiled call {node.name}" for node in nodes if node.attr["_XlaMustCompile"].b}
    return sorted(found)
