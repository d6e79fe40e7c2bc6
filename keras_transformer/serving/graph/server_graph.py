"""The graph that a server runs: written out and optimized once, when the export is made.

A SavedModel calls a function for each signature. By default a server's session optimizes all these functions when it
restores the weights, again when it runs the initializer, and again at the first request of each signature. That takes
seconds each time, and gives the same graph each time.
"""

import re

from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2
from tensorflow.core.protobuf.device_properties_pb2 import DeviceProperties, NamedDevice

# TensorFlow has no public functions for these. setup.cfg allows one minor version of TensorFlow.
from tensorflow.python.eager import context
from tensorflow.python.framework.meta_graph import stripped_op_list_for_graph
from tensorflow.python.grappler import tf_optimizer
from tensorflow.python.grappler.cluster import Cluster

from keras_transformer.serving.graph.called import (
    EMPTY,
    calls_of_large_functions,
    functions_called,
    graph_of_function,
    graph_without_nodes,
    written_out,
)
from keras_transformer.serving.graph.loop_invariants import hold_invariants
from keras_transformer.serving.graph.names import free_name, node_of, with_name
from keras_transformer.serving.graph.shared import open_signatures

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
    names = sorted(meta_graph.signature_def, key=lambda name: (name != "serving_default", name))
    signatures = {name: meta_graph.signature_def[name] for name in names if not name.startswith("__")}
    replaced = {end for signature in signatures.values() for end in _ends(signature)}
    kept = [node for node in graph.node if node.name not in replaced]
    opened = open_signatures(graph, signatures)

    new = graph_without_nodes(meta_graph)
    calls = calls_of_large_functions(opened, new.graph_def.library)
    new.graph_def.node.extend([*kept, *opened])
    for name, signature in signatures.items():
        new.signature_def[name].CopyFrom(signature)
    nodes, library = _optimized(new, kept)
    for name, own_calls in calls.items():
        own_graph, arguments, results = graph_of_function(name, own_calls, kept, new)
        own_nodes, own_library = _optimized(own_graph, kept)
        nodes = written_out(nodes, name + EMPTY, own_nodes, arguments, results)
        library = own_library | library
    traced = {function.signature.name for function in graph.library.function}
    called = functions_called(nodes, library)
    graph.library.function.extend(library[name] for name in called if name not in traced)
    del graph.node[:]
    graph.node.extend([*kept, *nodes])
    meta_graph.meta_info_def.stripped_op_list.CopyFrom(stripped_op_list_for_graph(graph))


def _optimized(meta_graph, kept):
    """Optimizes a graph.

    Args:
        meta_graph: The `MetaGraphDef`. Its signatures keep their inputs and outputs.
        kept: `NodeDef`s of the graph that stay as they are.

    Returns:
        The other nodes, a list of `NodeDef`; and all functions, a dict from a name to its `FunctionDef`.
    """
    cpu = NamedDevice(
        name="/job:localhost/replica:0/task:0/device:CPU:0", properties=DeviceProperties(type="CPU")
    )
    # Without a cluster, TensorFlow would look at the devices of this machine.
    cluster = Cluster(devices=[cpu])
    optimized = tf_optimizer.OptimizeGraph(_optimizer_config(), meta_graph, verbose=False, cluster=cluster)
    nodes = hold_invariants(optimized.node)
    nodes = _named_after_signatures(nodes, dict(meta_graph.signature_def), {node.name for node in kept})
    return nodes, {function.signature.name: function for function in optimized.library.function}


def _optimizer_config():
    """Returns the `ConfigProto` of an optimization that leaves out what depends on the machine."""
    config = config_pb2.ConfigProto()
    rewrites = config.graph_options.rewrite_options
    off = rewriter_config_pb2.RewriterConfig.OFF
    rewrites.remapping = rewrites.layout_optimizer = rewrites.implementation_selector = off
    rewrites.memory_optimization = rewriter_config_pb2.RewriterConfig.NO_MEM_OPT
    # A second pass removes 1 % of the nodes.
    rewrites.meta_optimizer_iterations = rewriter_config_pb2.RewriterConfig.ONE
    rewrites.min_graph_nodes = -1  # optimize small graphs too
    # No limit of time.
    rewrites.meta_optimizer_timeout_ms = -1
    return config


def _named_after_signatures(nodes, signatures, kept):
    """Gives nodes short names that say where they are from, and leaves out those that no signature needs.

    Args:
        nodes: The `NodeDef`s, changed in place.
        signatures: A dict from a name to its `SignatureDef`. Its inputs and outputs keep their names.
        kept: The names of nodes of the same graph that are left out, too.

    Returns:
        A list of the `NodeDef`s.
    """
    by_name = {node.name: node for node in nodes}
    fixed, owners = set(kept), {}
    for name, signature in signatures.items():
        ends = _ends(signature)
        fixed.update(ends)
        owners |= dict.fromkeys(_needed(ends, by_name, owners), name)
    taken, names = set(fixed), {}
    for name in owners:
        if name not in fixed:
            parts = [part for part in name.split("/") if not ADDED.fullmatch(part)]
            short = "/".join([owners[name], *parts[-4:]]) if parts else f"{owners[name]}/{by_name[name].op}"
            names[name] = free_name(short, taken)
            taken.add(names[name])
    return list(_renamed((by_name[name] for name in owners if name not in kept), names))


def _ends(signature):
    """Returns the names of the nodes that are inputs and outputs of a `SignatureDef`, sorted."""
    return sorted(node_of(info.name) for info in (*signature.inputs.values(), *signature.outputs.values()))


def _needed(names, nodes, known=()):
    """Returns the names of the nodes that must run before those of some names, and these names, without the known ones.

    Args:
        names: The names, a list of str.
        nodes: A dict from a name to its `NodeDef`.
        known: Names that are left out, with what must run before them.
    """
    needed, left = {}, list(names)
    while left:
        name = left.pop()
        if name not in needed and name not in known:
            needed[name] = None
            left += map(node_of, nodes[name].input)
    return list(needed)


def leave_signature(meta_graph, name):
    """Takes everything out of a graph that one signature, the restoring and the initializer do not need.

    Args:
        meta_graph: The `MetaGraphDef` of a SavedModel, changed in place.
        name: Name of the signature.
    """
    graph, saver = meta_graph.graph_def, meta_graph.saver_def
    kept = [key for key in meta_graph.signature_def if key.startswith("__") or key == name]
    ends = [end for key in kept for end in _ends(meta_graph.signature_def[key])]
    tensors = saver.restore_op_name, saver.save_tensor_name, saver.filename_tensor_name
    ends += map(node_of, tensors)
    by_name = {node.name: node for node in graph.node}
    names = _needed(ends, by_name)
    nodes = [by_name[each] for each in names]
    functions = {function.signature.name: function for function in graph.library.function}
    called = functions_called(nodes, functions)
    _keep(graph.node, nodes)
    _keep(graph.library.function, [functions[name] for name in called])
    for key in meta_graph.signature_def.keys() - kept:
        del meta_graph.signature_def[key]


def _keep(field, messages):
    """Replaces the messages of a repeated field by some of them."""
    kept = [type(each).FromString(each.SerializeToString()) for each in messages]
    del field[:]
    field.extend(kept)


def _renamed(nodes, names):
    """Yields nodes with their new names, and with the new names of their inputs."""
    for node in nodes:
        node.name = names.get(node.name, node.name)
        node.input[:] = [with_name(each, names) for each in node.input]
        # Notes of the optimizer, and places, which TensorFlow finds by the variables that an operation reads.
        for notes in [key for key in node.attr if key.startswith("_grappler") or key == "_class"]:
            del node.attr[notes]
        # It holds the names that the nodes had in their functions.
        node.ClearField("experimental_debug_info")
        yield node
