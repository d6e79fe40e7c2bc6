"""Files of sentences with a label for each word."""

import re

from keras_transformer.checks import check
from keras_transformer.data.corpus import read_lines


def read_conll(path):
    """Reads a file in CoNLL's form: a word and its label on each line, and a blank line after each sentence.

    The word is the first column, the label the last one; columns end at blanks or tabs. A line that begins with
    `-DOCSTART-` is left out (Tjong Kim Sang and De Meulder, 2003, "CoNLL-2003 shared task").

    Args:
        path: Path of a plain file or of a `.gz`.

    Returns:
        A list of sentences, each a pair of tuples: its words and their labels.

    Raises:
        ValueError: If the file cannot be read, holds no sentence, or a line has one column alone. The error names it.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w+") as file:
    ...     _ = file.write("Ada B-PER\\nsings O\\n\\nYes O\\n"), file.flush()
    ...     read_conll(file.name)
    [(('Ada', 'sings'), ('B-PER', 'O')), (('Yes',), ('O',))]
    """
    sentences, sentence = [], []
    for number, line in enumerate([*read_lines(path), ""], 1):
        # Other white space, such as a no-break space in a number, is a part of a word.
        columns = re.findall(r"[^ \t]+", line)
        if columns and columns[0] != "-DOCSTART-":
            rule = f"{path}, line {number}: a line must have a word and a label, with a blank between them."
            check(len(columns) > 1, rule, line=line)
            sentence.append((columns[0], columns[-1]))
        elif sentence:
            sentences.append(tuple(zip(*sentence, strict=True)))
            sentence = []
    check(sentences, f"{path} must hold a sentence.", sentences=0)
    return sentences
