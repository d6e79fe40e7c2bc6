"""Writes a SavedModel, makes its graph small, and checks that a stock server can run it."""

from pathlib import Path

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

# TensorFlow has no public function for it. setup.cfg allows one minor version of TensorFlow.
from tensorflow.python.saved_model.fingerprinting_utils import write_fingerprint

from keras_transformer.serving.graph.names import with_name
from keras_transformer.serving.graph.server_graph import write_out_signatures

# TensorFlow has these ops, but a server does not run Python.
PYTHON_OPS = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}
# The ops of tensorflow-text 2.20 that this library uses. TensorFlow Serving links them.
TEXT_OPS = {
    "SentencepieceOp",
    "SentencepieceTokenizeOp",
    "SentencepieceTokenizeWithOffsetsOp",
    "SentencepieceDetokenizeOp",
    "FastWordpieceTokenizeWithOffsets",
    "NormalizeUTF8",
}
# oneDNN's operations in TensorFlow for Linux on x86-64, and so in TensorFlow Serving. They have no function in Python.
ONEDNN_OPS = {"_QuantizedMatMul"}


def write_saved_model(module, signatures, path, xla):
    """Saves a module to a new folder, and checks that a stock server can run it.

    Args:
        module: A `tf.Module` that tracks all variables and resources of the signatures.
        signatures: A dict from name to concrete function, or `tf.function` with an input signature.
        path: Path of the folder; must not exist.
        xla: Whether the graph may hold XLA ops and compiled functions.

    Raises:
        ValueError: If the graph holds an op that a stock server does not have, or with `xla=False` an XLA op or a
            compiled function.
    """
    # An export is not trained, so it needs no gradients.
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    tf.saved_model.save(module, str(path), signatures=signatures, options=options)
    compiled = compiled_parts(path)
    if compiled and not xla:
        raise ValueError(
            "The export must run where XLA is disabled, but its graph holds "
            f"{', '.join(compiled[:5])}. Use `xla=True` for a compiled export."
        )
    foreign = foreign_ops(path)
    if foreign:
        raise ValueError(
            f"The export must run in a stock TensorFlow Serving, which has no {', '.join(foreign[:5])}."
        )
    saved = _parsed(path)
    for meta_graph in saved.meta_graphs:
        _make_small(meta_graph.graph_def)
        if not xla:
            write_out_signatures(meta_graph)
    (Path(path) / "saved_model.pb").write_bytes(saved.SerializeToString(deterministic=True))
    write_fingerprint(str(path))


def compiled_parts(path):
    """Finds the XLA ops and compiled functions of a SavedModel.

    Args:
        path: Path of the SavedModel's folder.

    Returns:
        A sorted list of str.
    """
    parts = set()
    for graph in _graphs(path):
        parts |= {
            f"compiled function {function.signature.name}"
            for function in graph.library.function
            if function.attr["_XlaMustCompile"].b
        }
        parts |= {f"op {node.op}" for node in _nodes(graph) if node.op.startswith("Xla")}
        parts |= {f"compiled call {node.name}" for node in _nodes(graph) if node.attr["_XlaMustCompile"].b}
    return sorted(parts)


def foreign_ops(path):
    """Finds the ops of a SavedModel that neither TensorFlow nor the tensorflow-text in the server has.

    Args:
        path: Path of the SavedModel's folder.

    Returns:
        A sorted list of str.
    """
    used = set()
    for graph in _graphs(path):
        functions = {function.signature.name for function in graph.library.function}
        used |= {node.op for node in _nodes(graph)} - functions
    known = {op for op in used if hasattr(tf.raw_ops, op) or op.startswith("Xla")} | TEXT_OPS | ONEDNN_OPS
    return sorted(used - (known - PYTHON_OPS))


def _make_small(graph):
    """Removes from a `GraphDef` what no server needs.

    - The names of custom gradients. The gradients are not saved, and TensorFlow would warn of each that is missing.
    - The shapes that were found while tracing: a server finds them itself.
    - Constants of a function that are equal to another one: tracing makes three for each slice.
    """
    for node in _nodes(graph):
        node.attr.pop("_gradient_op_type", None)
        node.attr.pop("_output_shapes", None)
    for function in graph.library.function:
        _merge_constants(function)


def _merge_constants(function):
    """Keeps one of the equal constants of a function, a `FunctionDef`."""
    first, same, others = {}, {}, []
    for i, node in enumerate(function.node_def):
        if node.op == "Const" and not node.input:
            attributes = {
                key: value.SerializeToString(deterministic=True) for key, value in node.attr.items()
            }
            content = (node.device, *sorted(attributes.items()))
            same[node.name] = first.setdefault(content, node.name)
            if same[node.name] != node.name:
                others.append(i)
    for i in reversed(others):
        del function.node_def[i]

    for node in function.node_def:
        node.input[:] = [with_name(each, same) for each in node.input]
    for names in (function.ret, function.control_ret):
        for key in names:
            names[key] = with_name(names[key], same)


def _parsed(path):
    saved = saved_model_pb2.SavedModel()
    saved.ParseFromString((Path(path) / "saved_model.pb").read_bytes())
    return saved


def _graphs(path):
    return [meta_graph.graph_def for meta_graph in _parsed(path).meta_graphs]


def _nodes(graph):
    yield from graph.node
    for function in graph.library.function:
        yield from function.node_def
