"""The graph that a server runs: written out and optimized once, when the export is made.

A SavedModel calls a function for each signature. By default a server's session optimizes all these functions when it
restores the weights, again when it runs the initializer, and again at the first request of each signature. That takes
seconds each time, and gives the same graph each time.
"""

import re

from tensorflow.core.protobuf import config_pb2, meta_graph_pb2, rewriter_config_pb2

# TensorFlow has no public function for it. setup.cfg allows one minor version of TensorFlow.
from tensorflow.python.grappler import tf_optimizer

SERVER_CONFIG = "saved_model_config.pb"  # in the folder `assets.extra`

# What TensorFlow adds to the names of the nodes of a function that it writes out.
ADDED = re.compile(r"StatefulPartitionedCall(_\d+)?|PartitionedCall(_\d+)?|Func|while(_\d+)?|body|_\d+")


def session_config():
    """Returns the `ConfigProto` of a session that runs graphs as they are."""
    config = config_pb2.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return config


def write_server_config(folder):
    """Tells TensorFlow Serving, from 2.19 on, to run the graph of an export as it is. Others optimize it once more.

    Args:
        folder: Path of the folder `assets.extra`.
    """
    # SavedModelConfig(session_overrides=SessionOverrides(disable_meta_optimizer=True)), of TensorFlow Serving's
    # servables/tensorflow/saved_model_config.proto. No package on PyPI holds these messages.
    (folder / SERVER_CONFIG).write_bytes(b"\n\x02\x18\x01")


def write_out_signatures(meta_graph):
    """Replaces the call of each signature's function by the optimized nodes of the function.

    Sessions run these nodes: those of a server, of Java or Go. `tf.saved_model.load` in Python runs the functions,
    which stay as they are.

    Args:
        meta_graph: The `MetaGraphDef` of a SavedModel, changed in place.
    """
    graph = meta_graph.graph_def
    signatures = {
        name: signature for name, signature in meta_graph.signature_def.items() if not name.startswith("__")
    }
    calls = {_node(info.name) for signature in signatures.values() for info in signature.outputs.values()}
    calls -= {node.name for node in graph.node if "PartitionedCall" not in node.op}
    kept = [node for node in graph.node if node.name not in calls]
    written = []
    for name, signature in signatures.items():
        part = meta_graph_pb2.MetaGraphDef()
        part.meta_info_def.CopyFrom(meta_graph.meta_info_def)
        part.signature_def[name].CopyFrom(signature)
        own = {_node(info.name) for info in signature.outputs.values()}
        part.graph_def.versions.CopyFrom(graph.versions)
        part.graph_def.library.CopyFrom(graph.library)
        part.graph_def.node.extend(node for node in graph.node if node.name in own or node.name not in calls)
        optimized = tf_optimizer.OptimizeGraph(
            _optimizer_config(), part, verbose=False, graph_id=name.encode(), strip_default_attributes=False
        )
        names = _short_names(name, optimized.node, {node.name for node in kept})
        written += _renamed(optimized.node, names)
        for info in signature.outputs.values():
            node, *output = info.name.split(":")
            info.name = ":".join([names.get(node, node), *output])
        known = {function.signature.name for function in graph.library.function}
        graph.library.function.extend(f for f in optimized.library.function if f.signature.name not in known)
    del graph.node[:]
    graph.node.extend([*kept, *written])


def _optimizer_config():
    """Returns the `ConfigProto` of an optimization that leaves out what depends on the machine."""
    config = config_pb2.ConfigProto()
    rewrites = config.graph_options.rewrite_options
    off = rewriter_config_pb2.RewriterConfig.OFF
    rewrites.remapping = rewrites.layout_optimizer = rewrites.implementation_selector = off
    rewrites.memory_optimization = rewriter_config_pb2.RewriterConfig.NO_MEM_OPT
    rewrites.min_graph_nodes = -1  # optimize small graphs too
    rewrites.meta_optimizer_timeout_ms = -1  # take the time that it takes
    return config


def _short_names(prefix, nodes, kept):
    """Returns a dict from the name of each node that is not kept to a name that is short and says where it is from."""
    names, taken = {}, set()
    for node in nodes:
        if node.name not in kept:
            parts = [part for part in node.name.split("/") if not ADDED.fullmatch(part)]
            short = "/".join([prefix, *parts[-4:]]) if parts else f"{prefix}/{node.op}"
            name, number = short, 0
            while name in taken:
                number += 1
                name = f"{short}.{number}"
            taken.add(name)
            names[node.name] = name
    return names


def _renamed(nodes, names):
    """Yields the nodes that have a new name, with the new names of their inputs."""
    for node in nodes:
        if node.name not in names:
            continue
        node.name = names[node.name]
        node.input[:] = [_with_name(each, names) for each in node.input]
        places = node.attr["_class"].list.s if "_class" in node.attr else []
        for i, place in enumerate(places):
            prefix, _, name = place.decode().partition("@")
            places[i] = f"{prefix}@{names.get(name, name)}".encode()
        yield node


def _with_name(tensor, names):
    before = "^" * tensor.startswith("^")
    node, *output = tensor.removeprefix("^").split(":")
    return before + ":".join([names.get(node, node), *output])


def _node(tensor):
    return tensor.split(":")[0]
