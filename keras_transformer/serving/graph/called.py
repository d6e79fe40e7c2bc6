"""Large functions that are called with different inputs, such as a search: each is optimized and stored once."""

import collections
import re

from tensorflow.core.framework.function_pb2 import FunctionDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.framework.tensor_shape_pb2 import TensorShapeProto
from tensorflow.core.protobuf.config_pb2 import ConfigProto
from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef, TensorInfo

from keras_transformer.serving.graph.names import node_of, place_of
from keras_transformer.serving.graph.shared import CALLS, Nodes, output_names

# Nodes of a function and of those that it calls, before they are optimized. A smaller one is written out at each call.
LARGE = 1000
# What the name of an optimized function ends with.
SERVED = "_served"


def functions_called(nodes, functions):
    """Returns the names of the functions that some nodes call, and those that these functions call.

    Args:
        nodes: `NodeDef`s.
        functions: A dict from a name to its `FunctionDef`.
    """
    called, left = {}, list(nodes)
    while left:
        for value in left.pop().attr.values():
            for each in (value.func.name, *(function.name for function in value.list.func)):
                if each in functions and each not in called:
                    called[each] = None
                    left += functions[each].node_def
    return list(called)


def calls_of_large_functions(nodes, library):
    """Finds the large functions that are called more than once. Their calls stay calls.

    Args:
        nodes: `NodeDef`s. The calls that stay get the name of a new function.
        library: The `FunctionDefLibrary`. It gets the new functions, which say what a call takes and returns and
            compute nothing: so TensorFlow does not optimize them again with each call.

    Returns:
        A dict from the name of a large function to its calls, where they stay.
    """
    functions = {function.signature.name: function for function in library.function}
    calls = collections.defaultdict(list)
    for node in nodes:
        if node.op in CALLS and node.attr["f"].func.name in functions:
            calls[node.attr["f"].func.name].append(node)
    large = {}
    for name, calls_of_it in calls.items():
        called = functions_called(calls_of_it[:1], functions)
        if len(calls_of_it) == 1 or sum(len(functions[each].node_def) for each in called) < LARGE:
            continue
        large[name] = calls_of_it
        empty = library.function.add()
        empty.signature.CopyFrom(functions[name].signature)
        empty.signature.name = name + SERVED
        # Its outputs wait for what a function must do.
        empty.signature.control_output.clear()
        empty.attr["_noinline"].b = empty.attr["_nospecialize"].b = True
        for output in empty.signature.output_arg:
            node = empty.node_def.add(name=f"{output.name}_placeholder", op="Placeholder")
            node.attr["dtype"].type = output.type
            empty.ret[output.name] = f"{node.name}:output:0"
        for node in calls_of_it:
            node.attr["f"].func.name = empty.signature.name
    return large


def graph_of_function(name, calls, outer_nodes, meta_graph):
    """Writes a function out as a graph of its own, so that it can be optimized.

    Args:
        name: The name of the function.
        calls: The `NodeDef`s of its calls.
        outer_nodes: `NodeDef`s that stand outside of all functions, such as variables. The new graph has them, too.
        meta_graph: The `MetaGraphDef` with all functions.

    Returns:
        A `MetaGraphDef`, whose only signature has the inputs and outputs of the function; and a dict from the name of a
        node to the argument that it stands for.
    """
    # TensorFlow names a function that it makes after a node. So no two graphs have nodes of one name.
    prefix = re.sub(r"[^A-Za-z0-9.]", "_", name).strip("_")
    new = graph_without_nodes(meta_graph)
    functions = {each.signature.name: each for each in new.graph_def.library.function}
    function, signature, arguments = functions[name].signature, new.signature_def[prefix], {}
    outer_names, nodes = {node.name for node in outer_nodes}, new.graph_def.node
    nodes.extend(outer_nodes)
    # TensorFlow writes them when it traces. An argument without one has any shape.
    shapes = dict(enumerate(functions[name].attr["_input_shapes"].list.shape))
    for i, (argument, *tensors) in enumerate(zip(function.input_arg, *map(_values, calls), strict=True)):
        if len({*tensors}) == 1 and tensors[0] in outer_names:
            arguments[tensors[0]] = argument.name
        else:
            node = nodes.add(name=f"{prefix}/{argument.name}", op="Placeholder")
            shape = shapes.get(i, TensorShapeProto(unknown_rank=True))
            node.attr["dtype"].type = argument.type
            node.attr["shape"].shape.CopyFrom(shape)
            info = TensorInfo(name=f"{node.name}:0", dtype=argument.type, tensor_shape=shape)
            signature.inputs[argument.name].CopyFrom(info)
            arguments[node.name] = argument.name
    call = NodeDef(op=calls[0].op)
    call.attr["f"].func.name = name
    opened = Nodes(functions, f"{prefix}/")
    results, waits = opened.open(call, list(arguments), levels=1)
    nodes.extend(opened.nodes)
    for output, result in zip(function.output_arg, results, strict=True):
        node = nodes.add(name=f"{prefix}/{output.name}", op="Identity", input=[result, *waits])
        node.attr["T"].type = output.type
        signature.outputs[output.name].CopyFrom(TensorInfo(name=f"{node.name}:0", dtype=output.type))
    return new, arguments


def graph_without_nodes(meta_graph):
    """Returns a `MetaGraphDef` with the functions of another one, without its nodes and signatures."""
    new = MetaGraphDef(meta_info_def=meta_graph.meta_info_def)
    new.graph_def.versions.CopyFrom(meta_graph.graph_def.versions)
    new.graph_def.library.CopyFrom(meta_graph.graph_def.library)
    return new


def function_of_graph(nodes, empty, signature, arguments):
    """Makes a function of a graph, a `FunctionDef`.

    Args:
        nodes: The `NodeDef`s; they are changed.
        empty: A `FunctionDef` with the name, the arguments and the outputs of the function.
        signature: The `SignatureDef` of the graph, with these outputs.
        arguments: A dict from the name of a node to the argument that it stands for.
    """
    function = FunctionDef(signature=empty.signature)
    nodes = [node for node in nodes if node.name not in arguments]
    places = {(name, 0): argument for name, argument in arguments.items()}
    for node in nodes:
        places |= {(node.name, i): f"{node.name}:{each}" for i, each in enumerate(output_names(node))}
    for node in nodes:
        # An argument is there before the function begins.
        waits = [each for each in node.input if each.startswith("^") and node_of(each) not in arguments]
        node.input[:] = [*(places[place_of(tensor)] for tensor in _values(node)), *waits]
    function.node_def.extend(nodes)
    for name, info in signature.outputs.items():
        function.ret[name] = places[place_of(info.name)]
    return function


def _values(node):
    """Returns the inputs of a node that are values: it only waits for the others."""
    return [tensor for tensor in node.input if not tensor.startswith("^")]


def as_it_is(nodes):
    """Tells the calls of optimized functions, among nodes, that nothing is left to optimize."""
    config = ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    for node in nodes:
        if node.op in CALLS and node.attr["f"].func.name.endswith(SERVED):
            node.attr["config_proto"].s = config.SerializeToString()
