"""Checks of the map of characters in a SentencePiece model, which native code reads without a look at its bounds."""

import numpy as np

LONGEST_KEY = 1024  # bytes of a text that the map replaces at once
LONGEST_FORM = 1024  # bytes that it writes instead
MOST_PREFIXES = (
    31  # keys that begin one another; SentencePiece keeps 32 of them, and reads as many as it found
)


def check_character_map(content):
    """Raises `ValueError` for a map of characters that SentencePiece and tensorflow-text would read out of bounds.

    A map holds the size of a double array (Aoe, 1989), the array, and the normal forms, which end in NUL. The place of
    a prefix of a text is a base. The next byte leads to the unit at `base ^ byte`, if that unit has the byte as its
    label, and its offset leads to the next base. A unit with a leaf has at the next base the place of a normal form.

    Args:
        content: `precompiled_charsmap` of a `NormalizerSpec`, bytes. Empty for no map.
    """
    if not content:
        return
    size = int.from_bytes(content[:4], "little")
    if size % 1024 or not 0 < size < len(content) - 4:
        raise ValueError(f"`precompiled_charsmap` must begin with the size of its array. Received: {size}.")
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
    real = np.flatnonzero(labels < 256)
    parents, children, leaves = real ^ labels[real], bases[real], (units[real] >> 8) & 1
    is_start = np.zeros(len(forms) + 1, bool)
    is_start[starts[:-1]] = True
    values = np.minimum(units & 0x7FFFFFFF, len(forms))
    found = np.full(
        len(units), -1
    )  # the number of keys that end on the way to a base, -1 where no way leads there
    if bases[0] < len(units):
        found[bases[0]] = 0
    good, length = bases[0] < len(units), 0
    while good and (found >= 0).any():
        length += 1
        ways = np.flatnonzero(found[parents] >= 0)
        counts, ways_to = found[parents[ways]] + leaves[ways], children[ways]
        good = length <= LONGEST_KEY and (ways_to < len(units)).all() and (counts <= MOST_PREFIXES).all()
        if good:
            good = is_start[values[ways_to[leaves[ways] > 0]]].all()
            found = np.full(len(units), -1)
            np.maximum.at(found, ways_to, counts)
    if not good:
        raise ValueError(
            "`precompiled_charsmap` must hold an array whose ways end inside it, at a normal form."
        )
