"""The names of nodes in the graph of an export, and the inputs that refer to them."""

# Stands in place of an output's number for "^node", which only waits for the node.
CONTROL = -1


def place_of(tensor):
    """Returns the node and the output of an input such as "node:1" or "^node", a str and an int."""
    name, _, output = tensor.removeprefix("^").partition(":")
    return name, CONTROL if tensor.startswith("^") else int(output or 0)


def node_of(tensor):
    """Returns the name of the node of an input such as "node:1", "node:output:1" or "^node"."""
    return tensor.removeprefix("^").partition(":")[0]


def values_and_waits(inputs):
    """Returns the inputs of a node that are values, and those such as "^node" that it waits for: two lists."""
    waits = [tensor for tensor in inputs if tensor.startswith("^")]
    return [tensor for tensor in inputs if not tensor.startswith("^")], waits


def with_name(tensor, names):
    """Returns an input, such as "node:output:0" or "^node" for a node that must run before, with a node's new name.

    Args:
        tensor: A str.
        names: A dict from the names of nodes to new ones; other names stay.
    """
    before = "^" * tensor.startswith("^")
    node, *output = tensor.removeprefix("^").split(":")
    return before + ":".join([names.get(node, node), *output])


def free_name(name, taken):
    """Returns a name, with a number after it where it is taken."""
    number, free = 0, name
    while free in taken:
        number += 1
        free = f"{name}.{number}"
    return free
