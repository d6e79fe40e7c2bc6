"""Functions that several signatures call with different inputs, such as a search: each is in the graph once."""

import collections
import re

from tensorflow.core.framework.function_pb2 import FunctionDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.protobuf import config_pb2, meta_graph_pb2

from keras_transformer.serving.graph.names import node_of, place_of
from keras_transformer.serving.graph.shared import CALLS, Nodes, output_names

# A function of fewer nodes is written out at each call.
MANY = 1000
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


def calls_to_keep(nodes, library):
    """Finds the calls of large functions that stay calls, because there are several.

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
    kept = {}
    for name, own in calls.items():
        inner = functions_called(own[:1], functions)
        if len(own) == 1 or sum(len(functions[each].node_def) for each in inner) < MANY:
            continue
        kept[name] = own
        empty = library.function.add()
        empty.signature.CopyFrom(functions[name].signature)
        empty.signature.name = name + SERVED
        # Its outputs wait for what a function must do.
        empty.signature.control_output.clear()
        empty.attr["_noinline"].b = empty.attr["_nospecialize"].b = True
        for output in empty.signature.output_arg:
            node = empty.node_def.add(name=f"{output.name}_of_it", op="Placeholder")
            node.attr["dtype"].type = output.type
            empty.ret[output.name] = f"{node.name}:output:0"
        for node in own:
            node.attr["f"].func.name = empty.signature.name
    return kept


def graph_of_function(name, calls, given, meta_graph):
    """Writes a function out as a graph of its own, so that it can be optimized.

    Args:
        name: The name of the function.
        calls: The `NodeDef`s of its calls.
        given: `NodeDef`s that stand outside of all functions, such as variables. The new graph has them, too.
        meta_graph: The `MetaGraphDef` with all functions.

    Returns:
        A `MetaGraphDef`, whose only signature has the inputs and outputs of the function; and a dict from the name of a
        node to the argument that it stands for.
    """
    # The nodes of two functions have other names, or those of functions that TensorFlow makes of them would be equal.
    prefix = re.sub(r"[^A-Za-z0-9.]", "_", name).strip("_")
    part = meta_graph_pb2.MetaGraphDef()
    part.CopyFrom(meta_graph)
    part.signature_def.clear()
    del part.graph_def.node[:]
    functions = {each.signature.name: each for each in part.graph_def.library.function}
    described, signature, arguments = functions[name].signature, part.signature_def[prefix], {}
    outside, shapes = {node.name for node in given}, functions[name].attr["_input_shapes"].list.shape
    for argument, shape, *tensors in zip(described.input_arg, shapes, *map(_values, calls), strict=True):
        if len({*tensors}) == 1 and tensors[0] in outside:
            arguments[tensors[0]] = argument.name
        else:
            node = part.graph_def.node.add(name=f"{prefix}/{argument.name}", op="Placeholder")
            node.attr["dtype"].type = argument.type
            node.attr["shape"].shape.CopyFrom(shape)
            info = signature.inputs[argument.name]
            info.name, info.dtype = f"{node.name}:0", argument.type
            info.tensor_shape.CopyFrom(shape)
            arguments[node.name] = argument.name
    call = NodeDef(op=calls[0].op)
    call.attr["f"].func.name = name
    opened = Nodes(functions, f"{prefix}/")
    results, waits = opened.open(call, list(arguments), levels=1)
    part.graph_def.node.extend([*given, *opened.nodes])
    for output, result in zip(described.output_arg, results, strict=True):
        node = part.graph_def.node.add(name=f"{prefix}/{output.name}", op="Identity", input=[result, *waits])
        node.attr["T"].type = output.type
        info = signature.outputs[output.name]
        info.name, info.dtype = f"{node.name}:0", output.type
    return part, arguments


def function_of_graph(nodes, signature, arguments, outputs):
    """Makes a function of a graph, a `FunctionDef`.

    Args:
        nodes: The `NodeDef`s; they are changed.
        signature: The `OpDef` of the function.
        arguments: A dict from the name of a node to the argument that it stands for.
        outputs: A dict from the name of an output to its tensor, such as "node:0".
    """
    function = FunctionDef()
    function.signature.CopyFrom(signature)
    nodes = [node for node in nodes if node.name not in arguments]
    places = {(name, 0): argument for name, argument in arguments.items()}
    for node in nodes:
        places |= {(node.name, i): f"{node.name}:{each}" for i, each in enumerate(output_names(node))}
    for node in nodes:
        # An argument is there before the function begins.
        waits = [each for each in node.input if each.startswith("^") and node_of(each) not in arguments]
        node.input[:] = [*(places[place_of(tensor)] for tensor in _values(node)), *waits]
    function.node_def.extend(nodes)
    for name, tensor in outputs.items():
        function.ret[name] = places[place_of(tensor)]
    return function


def _values(node):
    """Returns the inputs of a node that are values: it only waits for the others."""
    return [tensor for tensor in node.input if not tensor.startswith("^")]


def as_it_is(nodes):
    """Tells the calls of optimized functions, among nodes, that nothing is left to optimize."""
    config = config_pb2.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    for node in nodes:
        if node.op in CALLS and node.attr["f"].func.name.endswith(SERVED):
            node.attr["config_proto"].s = config.SerializeToString()
