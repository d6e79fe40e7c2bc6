"""Tables of texts: columns of a CSV or TSV file, and the part that is held out."""

import csv
import random
from pathlib import Path

from keras_transformer.checks import check, check_range, warn
from keras_transformer.data.files import check_kind


def read_table(path, *columns):
    """Reads columns of a UTF-8 file whose first line names them; a `.tsv` has tabs, any other file has commas.

    Args:
        path: The file.
        *columns: The names of the columns, str.

    Returns:
        A list of tuples of str, one for each row that has text in all of the columns. A warning counts the others.

    Raises:
        ValueError: If the file cannot be read, has no such column, no such row, or a row with more columns than the
            first line.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
    ...     print("text,label\\ngood day,glad\\nno label,", file=file, flush=True)
    ...     read_table(file.name, "label", "text")
    [('glad', 'good day')]
    """
    tabs = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if Path(path).suffix.lower() == ".tsv" else {}
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            check_kind(file.buffer.peek(16), path)
            table = csv.DictReader(file, **tabs)
            names = table.fieldnames or []
            rows = []
            for row in table:
                if any(row.pop(None, ())):
                    rule = (
                        f"{path}, line {table.line_num}: a row must have no more columns than the first line"
                    )
                    rule += "." if tabs else ": a text with a comma needs quotes around it."
                    check(False, rule, columns=list(row.values()))
                rows.append(tuple((row.get(column) or "").strip() for column in columns))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"Cannot read {path}: {error}.") from None
    if not names:
        raise ValueError(f"{path} must have a first line that names its columns. Received: an empty file.")
    for column in columns:
        if column not in names:
            raise ValueError(f"{path} has no column {column!r}; its first line names {', '.join(names)}.")
    whole = [row for row in rows if all(row)]
    if not whole:
        raise ValueError(f"{path} has no row with text in {' and '.join(columns)}.")
    if len(whole) < len(rows):
        warn(
            f"{path}: {len(rows) - len(whole)} of {len(rows)} rows are left out, which lack text in "
            f"{' or '.join(columns)}."
        )
    return whole


def hold_out(rows, share, seed=1, stratified=False):
    """Draws the rows that are held out. No text of the first column is on both sides.

    Args:
        rows: A list of tuples.
        share: The share of the texts to hold out, in (0, 1): `round(share * texts)` of them, one at least, and not all.
            A share of 0.02 is only 4 of 200 texts: of few texts take a larger share.
        seed: Seed of the draw.
        stratified: Whether to draw this share of the texts of each label, which is the last column, and at least one
            of each label with two texts or more. A text with several labels counts for its first one.

    Returns:
        Two lists: the rows to train on, and those held out.

    Raises:
        ValueError: If there are fewer than two texts, or the share is not in (0, 1).

    >>> rows, held_out = hold_out([("a", 1), ("b", 2), ("a", 3)], 0.5)
    >>> {text for text, _ in rows} & {text for text, _ in held_out}
    set()
    """
    check_range(0, 1, above=True, share=share)
    label_of = {}
    for row in rows:
        label_of.setdefault(row[0], row[-1] if stratified else None)
    if len(label_of) < 2:
        raise ValueError(f"`rows` must have two or more texts. Received: {len(label_of)}.")
    texts_of = {}
    for text in sorted(label_of):
        texts_of.setdefault(label_of[text], []).append(text)
    generator, held_out = random.Random(seed), set()
    for texts in texts_of.values():
        held_out.update(generator.sample(texts, min(max(1, round(share * len(texts))), len(texts) - 1)))
    if not held_out:
        raise ValueError("`rows` must have two or more texts of a label. Received: one of each.")
    return [row for row in rows if row[0] not in held_out], [row for row in rows if row[0] in held_out]
