"""Checks of the map of characters in a SentencePiece model, which native code reads without a look at its bounds."""

import numpy as np

# Number of units of the array. SentencePiece's own maps have about 60,000.
MOST_UNITS = 2**20
# Number of bytes of a text that the map replaces at once.
LONGEST_KEY = 1024
# Number of bytes that the map writes instead.
LONGEST_FORM = 1024
# Number of keys that begin one another. SentencePiece keeps 32 of them, but reads as many as there are.
MOST_PREFIXES = 31


def check_character_map(content):
    """Raises `ValueError` for a map of characters that SentencePiece and tensorflow-text would read out of bounds.

    A map holds the size of a double array (Aoe, 1989), the array, and the normal forms, which end in NUL. SentencePiece
    reads a text byte by byte, and after each byte it has a base, an index of the array. The next byte leads to the unit
    at `base ^ byte`, if the label of that unit is the byte. The offset of the unit gives the next base. If the unit has
    a leaf, the value at the next base is the place of a normal form.

    Args:
        content: `precompiled_charsmap` of a `NormalizerSpec`, bytes. Empty for no map.
    """
    if not content:
        return
    size = int.from_bytes(content[:4], "little")
    if size % 1024 or not 0 < size < len(content) - 4:
        raise ValueError(f"`precompiled_charsmap` must begin with the size of its array. Received: {size}.")
    if size > 4 * MOST_UNITS:
        raise ValueError(
            f"`precompiled_charsmap` must hold at most {MOST_UNITS} units. Received: {size // 4}."
        )
    units, forms = np.frombuffer(content, "<u4", size // 4, 4).astype("int64"), content[4 + size :]
    ends = np.flatnonzero(np.frombuffer(forms, "uint8") == 0)
    starts = np.concatenate([[0], ends + 1])
    is_text = forms[-1] == 0 and np.diff(starts).max() <= LONGEST_FORM
    try:
        forms.decode()
    except ValueError:
        is_text = False
    if not is_text:
        raise ValueError("`precompiled_charsmap` must end with texts of UTF-8, each of which ends in NUL.")
    labels, bases = units & 0x800000FF, (units >> 10) << ((units & 0x200) >> 6)
    bases ^= np.arange(len(units))
    is_start = np.zeros(len(forms) + 1, bool)
    is_start[starts[:-1]] = True
    values = np.minimum(units & 0x7FFFFFFF, len(forms))
    if bases[0] >= len(units) or not _keys_are_bounded(units, labels, bases, is_start[values]):
        raise ValueError(
            "`precompiled_charsmap` must hold an array in which each key leads to an index of the array and to the "
            "start of a normal form."
        )


def _keys_are_bounded(units, labels, bases, is_form):
    """Returns whether all keys end inside the array, at a normal form, and keep the limits of this file.

    Each base that a text reaches is visited twice, so the cost is linear in the units.

    Args:
        units: The units, int64.
        labels: The labels of the units; 256 or more where there is none.
        bases: The bases to which the units lead.
        is_form: Whether the value at an index is the start of a normal form.
    """
    # The units that a byte leads to.
    steps = np.flatnonzero(labels < 256)
    steps = steps[np.argsort(steps ^ labels[steps], kind="stable")]
    before, after, leaves = steps ^ labels[steps], bases[steps], (units[steps] >> 8) & 1
    first = np.searchsorted(before, np.arange(len(units) + 1))

    def steps_from(reached):
        counts = first[reached + 1] - first[reached]
        return np.arange(counts.sum()) + np.repeat(first[reached] - np.cumsum(counts) + counts, counts)

    # All bases that a text reaches, and from how many steps.
    reached, is_reached, arrivals, length = (
        bases[:1],
        np.zeros(len(units), bool),
        np.zeros(len(units), "int64"),
        0,
    )
    is_reached[reached] = True
    while len(reached):
        taken, length = steps_from(reached), length + 1
        nexts = after[taken]
        good = length <= LONGEST_KEY and (nexts < len(units)).all()
        if not good or not is_form[nexts[leaves[taken] > 0]].all():
            return False
        np.add.at(arrivals, nexts, 1)
        reached = np.unique(nexts[~is_reached[nexts]])
        is_reached[reached] = True
    # Each base after all those that lead to it, with the largest number of keys on the way. A cycle is never done.
    keys, left, length = np.zeros(len(units), "int64"), is_reached.sum(), 0
    reached = bases[:1][arrivals[bases[:1]] == 0]
    while len(reached):
        taken, length, left = steps_from(reached), length + 1, left - len(reached)
        nexts = after[taken]
        np.maximum.at(keys, nexts, keys[before[taken]] + leaves[taken])
        if length > LONGEST_KEY or (keys[nexts] > MOST_PREFIXES).any():
            return False
        np.subtract.at(arrivals, nexts, 1)
        reached = np.unique(nexts[arrivals[nexts] == 0])
    return not left
