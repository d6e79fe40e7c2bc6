"""Loops of a graph that a server runs: a value that no step changes goes into its loop once."""

import collections

from tensorflow.core.framework.node_def_pb2 import NodeDef

CONTROL = -1  # in place of an output's number: "^node", which only waits for the node


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
    uses = collections.defaultdict(list)  # of a node: each node that uses it, and the number of the output
    for node in nodes:
        for tensor in node.input:
            name, output = _split(tensor)
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
        varying = varying[0]
        # It runs in each step, but not after the last one.
        pivot = NodeDef(
            name=f"{varying.switch.name}/pivot", op="Identity", input=[f"{varying.switch.name}:1"]
        )
        pivot.attr["T"].CopyFrom(varying.switch.attr["T"])
        pivots.append(pivot)
        for each in variables:
            if each.is_invariant and (exits or not each.is_waited_for):
                each.enter.attr["is_constant"].b = True
                removed.update(node.name for node in (each.next, each.merge, each.switch, *each.exits))
                moved.update(each.moved(varying.merge.name, pivot.name, exits[0] if exits else None))
                # What must be done before the next step begins.
                varying.next.input.extend(x for x in each.waits if x not in varying.next.input)

    left = [node for node in nodes if node.name not in removed]
    constants = {node.name for node in left if node.op == "Enter" and node.attr["is_constant"].b}
    for node in left:
        _move_inputs(node, moved, constants)
    used = {_split(tensor)[0] for node in left for tensor in node.input}
    return [*left, *(pivot for pivot in pivots if pivot.name in used)]


def _move_inputs(node, moved, constants):
    """Replaces the inputs of a node that have moved.

    Args:
        node: The `NodeDef`.
        moved: What `_Variable.moved` returns, for all of them.
        constants: The names of the constants of all loops.
    """
    anchor = None
    for i, tensor in enumerate(node.input):
        place = _split(tensor)
        while place in moved:
            place, anchor = moved[place]
            node.input[i] = f"^{place[0]}" if place[1] == CONTROL else f"{place[0]}:{place[1]}"
    # With constants alone it would run once more, when the loop has ended.
    if anchor is not None and all(_split(tensor)[0] in constants for tensor in node.input):
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
        self.merge = next(node for node, _ in uses[last.name] if node.op == "Merge")
        self.enter = next(
            node for node in (by_name[_split(x)[0]] for x in self.merge.input) if node.op == "Enter"
        )
        self.switch = next((node for node, _ in uses[self.merge.name] if node.op == "Switch"), None)
        used = [] if self.switch is None else uses[self.switch.name]
        self.exits = [node for node, output in used if output == 0]
        # Whoever waits for an exit waits for the end of the loop.
        self.is_waited_for = any(output == CONTROL for each in self.exits for _, output in uses[each.name])

        tensor, *self.waits = last.input
        while (source := by_name[_split(tensor)[0]]).op == "Identity":
            tensor, *waits = source.input
            self.waits += waits
        self.is_invariant = (
            self.switch is not None
            and _split(tensor) == (self.switch.name, 1)
            and len(uses[last.name]) == 1
            and len(self.merge.input) == 2
            and all(node.op == "Exit" for node in self.exits)
            and all(output in (0, CONTROL) for _, output in uses[self.merge.name])
        )

    def moved(self, condition, body, end):
        """Says where the values of the variable are, once it is a constant.

        Args:
            condition: The name of a node that runs before each step and before the end.
            body: The name of a node that runs in each step.
            end: The name of a node that runs when the loop has ended, or None where nobody waits for the variable's.

        Returns:
            A dict from a node's name and an output to the place in their stead, such a pair too, and the name of the
            node that its user has to wait for if it has constants alone; None outside of the loop.
        """
        found = {}
        for output in (0, CONTROL):
            found[self.merge.name, output] = (self.enter.name, output), condition
        for output in (1, CONTROL):
            found[self.switch.name, output] = (self.enter.name, min(output, 0)), body
        for each in self.exits:
            found[each.name, 0] = _split(self.enter.input[0]), None
            found[each.name, CONTROL] = (end, CONTROL), None
        return found


def _split(tensor):
    """Returns the node and the output of an input such as "node:1" or "^node", a str and an int."""
    name, _, output = tensor.removeprefix("^").partition(":")
    return name, CONTROL if tensor.startswith("^") else int(output or 0)
