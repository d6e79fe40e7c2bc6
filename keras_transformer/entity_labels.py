"""The labels of words that form entities: a letter for the place in an entity, and the kind of the entity."""

OUTSIDE = "O"
# Those of IOB and BIOES, and "L" and "U", which some write for "E" and "S".
BEGINS, ENDS = ("B", "S", "U"), ("E", "L", "S", "U")
LETTERS = {"I", *BEGINS, *ENDS}


def parts_of_label(label):
    """Returns the letter of a label, such as "B", and the kind of the entity; None outside of entities.

    A label without such a letter is a kind, and may be anywhere in an entity.

    >>> [parts_of_label(label) for label in ("B-PER", "PER", "T-shirt", "B", "O")]
    [('B', 'PER'), ('I', 'PER'), ('I', 'T-shirt'), ('B', '_'), ('O', None)]
    """
    if label == OUTSIDE:
        return OUTSIDE, None
    letter, _, kind = label.partition("-")
    return (letter, kind or "_") if letter in LETTERS else ("I", label)
