"""The graph that a server runs: written out and optimized once, when the export is made.

A SavedModel calls a function for each signature. By default a server's session optimizes all these functions when it
restores the weights, again when it runs the initializer, and again at the first request of each signature. That takes
seconds each time, and gives the same graph each time.
"""

import re

from tensorflow.core.protobuf import config_pb2, meta_graph_pb2, rewriter_config_pb2
from tensorflow.core.protobuf.device_properties_pb2 import DeviceProperties, NamedDevice

# TensorFlow has no public functions for these. setup.cfg allows one minor version of TensorFlow.
from tensorflow.python.eager import context
from tensorflow.python.framework.meta_graph import stripped_op_list_for_graph
from tensorflow.python.grappler import tf_optimizer
from tensorflow.python.grappler.cluster import Cluster

SERVER_CONFIG = "saved_model_config.pb"  # in the folder `assets.extra`

# What TensorFlow adds to the names of the nodes of a function that it writes out. Without it the file is half as large.
ADDED = re.compile(r"StatefulPartitionedCall(_\d+)?|PartitionedCall(_\d+)?|Func|while(_\d+)?|body|_\d+")


def session_config(folder):
    """Returns the `ConfigProto` of a session that treats an export as a server does, on this process's devices.

    Args:
        folder: Path of the export's folder `assets.extra`.
    """
    config = config_pb2.ConfigProto()
    config.CopyFrom(context.context().config)
    config.graph_options.rewrite_options.disable_meta_optimizer = (folder / SERVER_CONFIG).exists()
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
    functions = {function.signature.name for function in graph.library.function}
    signatures = {
        name: signature for name, signature in meta_graph.signature_def.items() if not name.startswith("__")
    }
    outputs = {_node(info.name) for signature in signatures.values() for info in signature.outputs.values()}
    calls = {node.name for node in graph.node if node.name in outputs and "PartitionedCall" in node.op}
    kept = [node for node in graph.node if node.name not in calls]
    taken, written = {node.name for node in graph.node}, []
    cpu = NamedDevice(
        name="/job:localhost/replica:0/task:0/device:CPU:0", properties=DeviceProperties(type="CPU")
    )
    cluster = Cluster(devices=[cpu])  # without it TensorFlow would look at the devices of this machine
    for name, signature in signatures.items():
        own = {_node(info.name) for info in signature.outputs.values()}
        part = meta_graph_pb2.MetaGraphDef()
        part.meta_info_def.CopyFrom(meta_graph.meta_info_def)
        part.signature_def[name].CopyFrom(signature)
        part.graph_def.versions.CopyFrom(graph.versions)
        part.graph_def.library.CopyFrom(graph.library)
        part.graph_def.node.extend(node for node in graph.node if node.name in own or node.name not in calls)
        optimized = tf_optimizer.OptimizeGraph(
            _optimizer_config(), part, verbose=False, graph_id=name.encode(), cluster=cluster
        )
        names = _short_names(name, optimized.node, {node.name for node in kept}, taken)
        written += _renamed(optimized.node, names)
        for info in signature.outputs.values():
            info.name = with_name(info.name, names)
        for function in optimized.library.function:
            if function.signature.name not in functions:
                functions.add(function.signature.name)
                graph.library.function.append(function)
    del graph.node[:]
    graph.node.extend([*kept, *written])
    meta_graph.meta_info_def.stripped_op_list.CopyFrom(stripped_op_list_for_graph(graph))


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


def _short_names(prefix, nodes, kept, taken):
    """Returns a dict from the name of each node that is not kept to a short one that says where it is from.

    Args:
        prefix: What each name begins with.
        nodes: The nodes.
        kept: The names of the nodes that keep theirs.
        taken: A set of the names that the graph has. The new ones are added.
    """
    names = {}
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
        node.input[:] = [with_name(each, names) for each in node.input]
        for notes in [key for key in node.attr if key.startswith("_grappler")]:
            del node.attr[notes]
        places = node.attr["_class"].list.s if "_class" in node.attr else []
        for i, place in enumerate(places):
            prefix, _, name = place.decode().partition("@")
            places[i] = f"{prefix}@{names.get(name, name)}".encode()
        yield node


def with_name(tensor, names):
    """Returns an input, such as "node:output:0" or "^node" for a node that must run before, with a node's new name.

    Args:
        tensor: A str.
        names: A dict from the names of nodes to new ones; the others keep theirs.
    """
    before = "^" * tensor.startswith("^")
    node, *output = tensor.removeprefix("^").split(":")
    return before + ":".join([names.get(node, node), *output])


def _node(tensor):
    return tensor.split(":")[0]
