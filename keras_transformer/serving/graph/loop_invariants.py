"""Loops of a graph that a server runs: a value that no step changes goes into its loop once."""

import collections

from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.framework.types_pb2 import DT_INT32

from keras_transformer.serving.graph.names import CONTROL, node_of, place_of


def hold_invariants(nodes):
    """Hands each value that a loop never changes to the loop as a constant.

    TensorFlow makes a variable of the loop of every value that its body uses. A variable goes through the operations
    `Merge`, `Switch` and `NextIteration` in each step, and leaves by an `Exit`; a constant needs none of them.

    Args:
        nodes: The `NodeDef`s of a graph whose loops are written out. They are changed in place.

    Returns:
        A list of the `NodeDef`s that are left.
    """
    nodes = list(nodes)
    by_name = {node.name: node for node in nodes}
    # For each node: the nodes that use it, with the number of the output that they use.
    uses = collections.defaultdict(list)
    for node in nodes:
        for tensor in node.input:
            name, output = place_of(tensor)
            uses[name].append((node, output))
    loops = collections.defaultdict(list)
    for node in nodes:
        if node.op == "NextIteration":
            variable = _Variable(node, by_name, uses)
            loops[variable.enter.attr["frame_name"].s].append(variable)

    removed, moved, pivots = set(), {}, []
    for variables in loops.values():
        varying = [each for each in variables if each.switch is not None and not each.is_invariant]
        if not varying:
            continue
        exits = [node.name for each in varying for node in each.exits]
        # One more use of a large value may keep TensorFlow from reusing its memory. Integers are small.
        smallest = min(varying, key=lambda each: each.switch.attr["T"].type != DT_INT32)
        switch = smallest.switch
        # It runs in each step, but not after the last one.
        pivot = NodeDef(name=f"{switch.name}/pivot", op="Identity", input=[f"{switch.name}:1"])
        pivot.attr["T"].CopyFrom(switch.attr["T"])
        pivots.append(pivot)
        for each in variables:
            if each.is_invariant and (exits or not each.has_waiting_exit):
                each.enter.attr["is_constant"].b = True
                removed.update(node.name for node in (each.next, each.merge, each.switch, *each.exits))
                moved.update(each.new_places(smallest.merge.name, pivot.name, exits[0] if exits else None))
                # What must be done before the next step begins.
                smallest.next.input.extend(x for x in each.waits if x not in smallest.next.input)

    left = [node for node in nodes if node.name not in removed]
    constants = {node.name for node in left if node.op == "Enter" and node.attr["is_constant"].b}
    for node in left:
        _move_inputs(node, moved, constants)
    used = {node_of(tensor) for node in left for tensor in node.input}
    return [*left, *(pivot for pivot in pivots if pivot.name in used)]


def _move_inputs(node, moved, constants):
    """Replaces the inputs of a node that have moved.

    Args:
        node: The `NodeDef`.
        moved: What `_Variable.new_places` returns, for all variables.
        constants: The names of the constants of all loops.
    """
    anchor = None
    for i, tensor in enumerate(node.input):
        place = place_of(tensor)
        while place in moved:
            place, own_anchor = moved[place]
            anchor = own_anchor or anchor
            node.input[i] = f"^{place[0]}" if place[1] == CONTROL else f"{place[0]}:{place[1]}"
    # With constants alone it would run once more, when the loop has ended.
    if anchor is not None and all(node_of(tensor) in constants for tensor in node.input):
        node.input.append(f"^{anchor}")


class _Variable:
    """The operations of one variable of a loop.

    Args:
        last: Its `NextIteration`, a `NodeDef`.
        by_name: A dict from a name to its `NodeDef`.
        uses: A dict from the name of a node to pairs: a `NodeDef` that uses it, and the number of the output.
    """

    def __init__(self, last, by_name, uses):
        self.next = last
        self.merge = _only(last, [node for node, _ in uses[last.name] if node.op == "Merge"])
        inputs = [by_name[node_of(tensor)] for tensor in self.merge.input]
        self.enter = _only(last, [node for node in inputs if node.op == "Enter"])
        # A condition of the user's may switch the same value; the switch of the loop asks the loop's condition.
        switches = [node for node, _ in uses[self.merge.name] if node.op == "Switch"]
        switches = [node for node in switches if by_name[node_of(node.input[1])].op == "LoopCond"]
        self.switch = switches[0] if len(switches) == 1 else None
        used = [] if self.switch is None else uses[self.switch.name]
        self.exits = [node for node, output in used if output == 0]
        self.has_waiting_exit = any(output == CONTROL for each in self.exits for _, output in uses[each.name])

        # The value that the next step begins with, and what the step waits for.
        tensor, *self.waits = last.input
        while (source := by_name[node_of(tensor)]).op == "Identity":
            tensor, *waits = source.input
            self.waits += waits
        self.is_invariant = (
            self.switch is not None
            and place_of(tensor) == (self.switch.name, 1)
            and len(uses[last.name]) == 1
            and len(self.merge.input) == 2
            and all(node.op == "Exit" for node in self.exits)
            and all(output in (0, CONTROL) for _, output in uses[self.merge.name])
        )

    def new_places(self, condition, body, end):
        """Says where the values of the variable are, once it is a constant.

        Args:
            condition: The name of a node that runs before each step and before the end.
            body: The name of a node that runs in each step.
            end: The name of a node that runs when the loop has ended. It may be None where no node waits for one of
                the variable's exits.

        Returns:
            A dict. Its keys are places: pairs of a node's name and the number of an output. Its values are pairs: the
            new place, and the name of the node for which a user of the place waits if all its inputs are constants.
            The name is None outside of the loop.
        """
        places = {}
        for output in (0, CONTROL):
            places[self.merge.name, output] = (self.enter.name, output), condition
        for output in (1, CONTROL):
            places[self.switch.name, output] = (self.enter.name, min(output, 0)), body
        for each in self.exits:
            places[each.name, 0] = place_of(self.enter.input[0]), None
            places[each.name, CONTROL] = (end, CONTROL), None
        return places


def _only(last, nodes):
    """Returns the one node of a list, or raises `ValueError` that names a `NextIteration` of an unusual loop."""
    if len(nodes) != 1:
        raise ValueError(
            f"A loop must have one Enter and one Merge for each variable. Received: {last.name!r}, which has "
            f"{[node.name for node in nodes]}."
        )
    return nodes[0]
