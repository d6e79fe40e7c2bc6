"""Inlines the functions of signatures, so that they share equal nodes."""

import graphlib
import re

from tensorflow.core.framework.node_def_pb2 import NodeDef

# TensorFlow has no public function for it. setup.cfg allows one minor version of TensorFlow.
from tensorflow.python.framework import op_def_registry

from keras_transformer.serving.graph.names import free_name, node_of, values_and_waits

CALLS = ("PartitionedCall", "StatefulPartitionedCall")
# The call of a signature is opened, and the call of the function that it wraps. The calls in that one stay calls.
LEVELS = 2


def open_signatures(graph, signatures):
    """Writes out the functions of signatures as nodes of one graph, in which equal nodes with equal inputs are one.

    So signatures that read the same text share its tokens, and those that search in the same way share the search. A
    call counts as equal, too: what a served function computes depends on its inputs and on weights that never change.

    Args:
        graph: The `GraphDef` of a SavedModel, in which each signature is the call of a function.
        signatures: A dict from a name to its `SignatureDef`, changed in place: inputs of the same name, dtype and shape
            become one, and each output gets a node of its own, such as "serving_default/translation".

    Returns:
        A list of `NodeDef`s that replace the calls and the inputs of the signatures.
    """
    by_name = {node.name: node for node in graph.node}
    opened = Nodes({function.signature.name: function for function in graph.library.function})
    inputs, outputs = {}, {}
    for name, signature in signatures.items():
        own = {node_of(info.name): key for key, info in signature.inputs.items()}
        call = by_name[node_of(next(iter(signature.outputs.values())).name)]
        tensors = [
            _shared_input(own[tensor], by_name, tensor, inputs) if tensor in own else tensor
            for tensor in call.input
        ]
        results, waits = opened.open(call, tensors, LEVELS)
        for key, info in sorted(signature.inputs.items()):
            info.name = f"{_shared_input(key, by_name, node_of(info.name), inputs)}:0"
        for key, info in sorted(signature.outputs.items()):
            result = results[int(info.name.partition(":")[2])]
            usual = f"{name}/{re.sub(r'[^A-Za-z0-9_.-]', '_', key)}"
            free = free_name(usual, by_name.keys() | outputs.keys())
            node = NodeDef(name=free, op="Identity", input=[result, *waits])
            node.attr["T"].type = info.dtype
            outputs[node.name] = node
            info.name = f"{node.name}:0"
    return [*inputs.values(), *opened.nodes, *outputs.values()]


def _shared_input(key, nodes, placeholder, inputs):
    """Returns the name of the input that signatures share in place of one of their own.

    Args:
        key: The name of the input in its signature.
        nodes: A dict from the names of the graph to their `NodeDef`s.
        placeholder: The name of the node of the signature's own input.
        inputs: A dict of the shared inputs so far, which gets a new one.
    """
    content = key, *_attributes(nodes[placeholder])
    if content not in inputs:
        node = NodeDef()
        node.CopyFrom(nodes[placeholder])
        usual = re.fullmatch(r"[A-Za-z0-9.][\w.-]*", key, re.ASCII) is not None
        names = nodes.keys() | {each.name for each in inputs.values()}
        node.name = free_name(key if usual else placeholder, names - {placeholder})
        inputs[content] = node
    return inputs[content].name


def _attributes(node):
    """Returns the attributes of a node, hashable."""
    return sorted((key, value.SerializeToString(deterministic=True)) for key, value in node.attr.items())


class Nodes:
    """Nodes of functions, in the order in which they are computed.

    Args:
        functions: A dict from a name to its `FunctionDef`.
        prefix: What the names of the nodes begin with.
    """

    def __init__(self, functions, prefix=""):
        self.functions, self.prefix, self.nodes, self._known = functions, prefix, [], {}

    def open(self, call, inputs, levels):
        """Writes out the function of a call.

        Args:
            call: The `NodeDef` of the call.
            inputs: The inputs of the call, such as "node:1" or, to wait for a node, "^node".
            levels: How many calls within one another to open.

        Returns:
            The outputs of the call, and what to wait for to wait for the call: lists of such str.
        """
        function = self.functions[call.attr["f"].func.name]
        values, before = values_and_waits(inputs)
        # In a function "argument", "node:outputs:1" and "^node" are inputs of a node.
        places = {arg.name: each for arg, each in zip(function.signature.input_arg, values, strict=True)}
        waits = {}

        def resolved(tensor):
            if not tensor.startswith("^"):
                return [places[tensor]]
            name = tensor.removeprefix("^")
            return [f"^{node_of(places[name])}"] if name in places else waits[name]

        for node, is_first in _in_order(function.node_def):
            own = [each for tensor in node.input for each in resolved(tensor)]
            own += before if is_first else []
            if levels > 1 and node.op in CALLS:
                results, waits[node.name] = self.open(node, own, levels - 1)
            else:
                name = self._add(node, own)
                results, waits[node.name] = (
                    [f"{name}:{i}" for i in range(len(_output_names(node)))],
                    [f"^{name}"],
                )
            places |= zip((f"{node.name}:{each}" for each in _output_names(node)), results, strict=True)
        results = [places[function.ret[each.name]] for each in function.signature.output_arg]
        return results, [each for name in function.control_ret.values() for each in waits[name]]

    def _add(self, node, inputs):
        """Adds a node of a function, unless an equal one is here. Returns its name."""
        values, waits = values_and_waits(inputs)
        inputs = values + sorted(set(waits))
        content = (node.op, node.device, *map(tuple, _attributes(node)), *inputs)
        # Two operations that draw random numbers draw different ones.
        alone = node.op not in CALLS and op_def_registry.get(node.op).is_stateful
        if not alone and content in self._known:
            return self._known[content]
        new = NodeDef()
        new.CopyFrom(node)
        new.name = f"{self.prefix}_{len(self.nodes)}/{node.name}"
        new.input[:] = inputs
        self.nodes.append(new)
        self._known[content] = new.name
        return new.name


def _in_order(nodes):
    """Returns the nodes of a function, each after those that it needs, and whether it needs none."""
    by_name = {node.name: node for node in nodes}
    # A dict and no set: the order must be the same in each process.
    needed = {
        node.name: dict.fromkeys(
            name for name in (node_of(tensor) for tensor in node.input) if name in by_name
        )
        for node in nodes
    }
    order = graphlib.TopologicalSorter(needed).static_order()
    return [(by_name[name], not needed[name]) for name in order]


def _output_names(node):
    """Returns the outputs of a node as its function names them, such as "outputs:1", in their order."""
    names = []
    for output in op_def_registry.get(node.op).output_arg:
        number = 1
        if output.number_attr:
            number = node.attr[output.number_attr].i
        elif output.type_list_attr:
            number = len(node.attr[output.type_list_attr].list.type)
        names += [f"{output.name}:{i}" for i in range(number)]
    return names
