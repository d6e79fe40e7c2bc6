"""Large functions that are called with different inputs, such as a search: each is optimized once."""

import collections
import re

from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.framework.tensor_shape_pb2 import TensorShapeProto
from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef, TensorInfo

from keras_transformer.serving.graph.names import CONTROL, node_of, place_of, values_and_waits
from keras_transformer.serving.graph.shared import CALLS, Nodes

# Nodes of a function and of those that it calls, before they are optimized. A smaller one is written out at each call.
LARGE = 1000
# What the name of a function that stands for a large one ends with.
EMPTY = "_empty"


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
        empty.signature.name = name + EMPTY
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
        A `MetaGraphDef`, whose only signature has the inputs and outputs of the function; the names of the nodes that
        stand for its arguments; and the names of its outputs, which stand for its results.
    """
    # TensorFlow names a function that it makes after a node. So no two graphs have nodes of one name.
    prefix = re.sub(r"[^A-Za-z0-9.]", "_", name).strip("_")
    new = graph_without_nodes(meta_graph)
    functions = {each.signature.name: each for each in new.graph_def.library.function}
    function, signature, arguments = functions[name].signature, new.signature_def[prefix], []
    outer_names, nodes = {node.name for node in outer_nodes}, new.graph_def.node
    nodes.extend(outer_nodes)
    # TensorFlow writes them when it traces. An argument without one has any shape.
    shapes = dict(enumerate(functions[name].attr["_input_shapes"].list.shape))
    values = (values_and_waits(call.input)[0] for call in calls)
    for i, (argument, *tensors) in enumerate(zip(function.input_arg, *values, strict=True)):
        if len({*tensors}) == 1 and tensors[0] in outer_names:
            arguments.append(tensors[0])
        else:
            node = nodes.add(name=f"{prefix}/{argument.name}", op="Placeholder")
            shape = shapes.get(i, TensorShapeProto(unknown_rank=True))
            node.attr["dtype"].type = argument.type
            node.attr["shape"].shape.CopyFrom(shape)
            info = TensorInfo(name=f"{node.name}:0", dtype=argument.type, tensor_shape=shape)
            signature.inputs[argument.name].CopyFrom(info)
            arguments.append(node.name)
    call = NodeDef(op=calls[0].op)
    call.attr["f"].func.name = name
    opened = Nodes(functions, f"{prefix}/")
    results, waits = opened.open(call, arguments, levels=1)
    nodes.extend(opened.nodes)
    for output, result in zip(function.output_arg, results, strict=True):
        node = nodes.add(name=f"{prefix}/{output.name}", op="Identity", input=[result, *waits])
        node.attr["T"].type = output.type
        signature.outputs[output.name].CopyFrom(TensorInfo(name=f"{node.name}:0", dtype=output.type))
    return new, arguments, [f"{prefix}/{output.name}" for output in function.output_arg]


def graph_without_nodes(meta_graph):
    """Returns a `MetaGraphDef` with the functions of another one, without its nodes and signatures."""
    new = MetaGraphDef(meta_info_def=meta_graph.meta_info_def)
    new.graph_def.versions.CopyFrom(meta_graph.graph_def.versions)
    new.graph_def.library.CopyFrom(meta_graph.graph_def.library)
    return new


def written_out(nodes, name, function_nodes, arguments, results):
    """Writes a function out at each of its calls.

    Args:
        nodes: The `NodeDef`s with the calls. No call is inside a loop.
        name: The name of the function that they call.
        function_nodes: The `NodeDef`s of the function's own graph.
        arguments: The names of the nodes that stand for its arguments there.
        results: The names of the nodes that stand for its results there.

    Returns:
        The `NodeDef`s, with copies of those of the function in place of the calls.
    """
    written, places = [], {}
    for node in nodes:
        if node.op not in CALLS or node.attr["f"].func.name != name:
            written.append(node)
            continue
        values, waits = values_and_waits(node.input)
        inputs = dict(zip(arguments, values, strict=True))
        written += _copies(function_nodes, node.name, inputs, waits)
        copied = [_name_in(node.name, result) for result in results]
        places |= {(node.name, i): [result] for i, result in enumerate(copied)}
        places[node.name, CONTROL] = [f"^{result}" for result in copied]
    for node in written:
        node.input[:] = [new for each in node.input for new in places.get(place_of(each), [each])]
    return written


def _copies(nodes, place, inputs, waits):
    """Returns copies of the nodes of a function.

    Args:
        nodes: The `NodeDef`s.
        place: What the names of the copies begin with, in place of the function.
        inputs: A dict from the names of the nodes that have no copy to the tensors that take their places.
        waits: What the copies wait for.
    """

    def moved(tensor):
        name, output = place_of(tensor)
        if output == CONTROL:
            return f"^{node_of(inputs[name])}" if name in inputs else f"^{_name_in(place, name)}"
        return inputs[name] if name in inputs else f"{_name_in(place, name)}:{output}"

    copies = []
    for node in nodes:
        if node.name not in inputs:
            copy = NodeDef()
            copy.CopyFrom(node)
            copy.name = _name_in(place, node.name)
            is_first = all(node_of(tensor) in inputs for tensor in node.input)
            copy.input[:] = [*map(moved, node.input), *(waits if is_first else [])]
            if "frame_name" in copy.attr:
                # Each copy of a loop is a loop of its own.
                copy.attr["frame_name"].s = f"{place}/".encode() + node.attr["frame_name"].s
            copies.append(copy)
    return copies


def _name_in(place, name):
    """Returns the name of a node of a function in another place."""
    return f"{place}/{name.partition('/')[2]}"
