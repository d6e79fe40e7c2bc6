"""Functions of a graph of TensorFlow that equal layers share. `tensorflow.py` hands `shared_function` on."""

import functools

import tensorflow as tf

# TensorFlow has no public way to ask.
from tensorflow.python.ops.control_flow_util_v2 import in_while_loop_defun

# Number of weights of a layer from which on each step of a loop calls a function that equal layers share.
CALLED_FROM = 2**25


def shared_function(function, size, differentiable):
    """Makes a function of the graph at hand, which is traced for its first call and used for all that are like it.

    Where calls stay in the graph, TensorFlow optimizes the function once for all of them. A call takes 50 microseconds.
    A loop over tokens feels that where a layer is small: there the operations stand in the place of the call.

    Args:
        function: Function of nests of tensors.
        size: Number of the weights among its arguments; None where no call may be left in the graph.
        differentiable: Whether somebody may take a gradient of the graph.

    Returns:
        Function of the same arguments.
    """
    # A partial has no code object: see `compiled`.
    function = functools.partial(function)
    if size is None:
        return tf.function(function, autograph=False)
    if size < CALLED_FROM and in_while_loop_defun(tf.compat.v1.get_default_graph()):
        written_out = tf.function(function, autograph=False)
        # TensorFlow records no gradient of a copy.
        return written_out if differentiable else _InPlace(written_out)
    return tf.function(function, autograph=False, experimental_attributes={"_noinline": True})


class _InPlace:
    """A function whose operations are copied into the graph for each of its calls.

    TensorFlow would put them into a loop itself, but after it has looked for what equal layers compute alike, such as
    their masks.

    Args:
        function: The `tf.function`.
    """

    def __init__(self, function):
        self.function, self.copies = function, {}

    def __call__(self, *args):
        function = self.function.get_concrete_function(*args)
        if function not in self.copies:
            self.copies[function] = _Copy(function)
        copy = self.copies[function]
        if copy.calls:
            # Nothing would keep the functions that a copy calls.
            return self.function(*args)
        outputs = iter(copy([x for x in tf.nest.flatten(args) if tf.is_tensor(x)]))
        return tf.nest.map_structure(
            lambda x: next(outputs) if tf.is_tensor(x) else x, function.structured_outputs
        )


class _Copy:
    """Copies the operations of a function into the graph at hand. `calls` is the number of functions that it calls.

    Args:
        function: The concrete function. One that calls others is not copied.
    """

    def __init__(self, function):
        graph, self.captured = function.graph, function.captured_inputs
        self.inputs, self.outputs = graph.inputs, graph.outputs
        definition, names = graph.as_graph_def(), {x.op.name for x in graph.inputs}
        nodes = [node for node in definition.node if node.name not in names]
        for node in nodes:
            # The copy has no operation that stands for an input, so none waits for one.
            kept = [name for name in node.input if name[0] != "^" or name[1:] not in names]
            node.ClearField("input")
            node.input.extend(kept)
            # The device of another operation, which may be an input.
            node.attr.pop("_class", None)
        self.read = {name.partition(":")[0] for node in nodes for name in node.input}
        self.definition = tf.compat.v1.GraphDef(node=nodes, versions=definition.versions)
        self.calls = len(definition.library.function)

    def __call__(self, tensors):
        """Returns the outputs of the function, a list of tensors.

        Args:
            tensors: List of the tensors among the arguments, in their order.
        """
        here = tf.compat.v1.get_default_graph()
        pairs = zip(self.inputs, (*tensors, *self.captured), strict=True)
        given = {x.name: here.capture(y) for x, y in pairs if x.op.name in self.read}
        names = [x.name for x in self.outputs]
        outputs = tf.graph_util.import_graph_def(self.definition, given, names, name="layer")
        for x, y in zip(outputs, self.outputs, strict=True):
            x.set_shape(y.shape)
        return outputs
