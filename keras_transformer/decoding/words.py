"""A constraint that forbids words, however a vocabulary writes them."""

import collections
import dataclasses
import functools
import unicodedata
from typing import NamedTuple

import keras
import numpy as np

from keras_transformer.checks import check
from keras_transformer.decoding.constraints import Constraint
from keras_transformer.execution import ops

# It stands between the texts of two tokens, whose bytes are the characters up to 255.
BETWEEN = chr(256)
# Kinds of the character before: none of a word, a letter or digit, a letter of Hangul.
BOUNDARY, LETTER, HANGUL = "boundary", "letter", "hangul"
# Thai to Myanmar, Khmer, and the blocks of Han, kana and their forms: words have no blanks between them.
WITHOUT_BLANKS = ((0x0E00, 0x109F), (0x1780, 0x17FF), (0x2E80, 0xA4CF), (0xF900, 0xFAFF), (0xFF00, 0xFFEF))
MOST_STEPS = 2**31


@keras.saving.register_keras_serializable("keras_transformer")
@dataclasses.dataclass(frozen=True)
class ForbidWords(Constraint):
    """Forbids words in all spellings: in any pieces, with or without a blank before them, in capitals or not.

    `ForbidWords.of(words, tokenizer)` makes one. A word that is a part of a longer one is allowed: with "cat" forbidden
    an output may have "cats". Chinese, Japanese and Thai have no blanks, so there a word is forbidden everywhere; a
    Korean word also with a particle. A blank in a word may be several, and other white space. Letters are compared as
    they are written: an "é" of two characters is not one of a single character. A search that has written a forbidden
    word so far can only go on inside a longer word.

    Args:
        words: tuple of str.
        written: str, the bytes that each id adds to a text, as characters up to 255, with U+0100 between the ids.

    Raises:
        ValueError: If there is no word, or one has no character but blanks.

    >>> from keras_transformer.text import ByteTokenizer
    >>> ForbidWords.of(["cat"], ByteTokenizer()).words
    ('cat',)
    """

    words: tuple = ()
    written: str = ""

    @classmethod
    def of(cls, words, tokenizer):
        """Makes the constraint for the outputs that a tokenizer writes.

        Args:
            words: List of str; a word may have blanks, such as "New York".
            tokenizer: A tokenizer of this library.
        """
        check(not isinstance(words, str), "`words` must be a list of str.", words=words)
        return cls(tuple(words), written_by(tokenizer))

    def __post_init__(self):
        words = self.words if isinstance(self.words, (list, tuple)) else ()
        fits = len(words) > 0 and all(isinstance(word, str) and word.strip() for word in words)
        check(fits, "`words` must be a list of str that are not blank.", words=self.words)
        check(isinstance(self.written, str), "`written` must be a str.", written=self.written)
        object.__setattr__(self, "words", tuple(" ".join(word.split()) for word in words))

    def blocked(self, beams, search, vocab_size):
        automaton = _automaton(self.words, self.written)
        rule = f"The words are forbidden for a tokenizer of {automaton.count} ids, more than the model has."
        check(automaton.count <= vocab_size, rule, vocab_size=vocab_size)
        size = len(automaton.ends[1]) * vocab_size
        rule = "The forbidden words are too many for this vocabulary: their states times its ids must be below 2**31."
        check(
            size < MOST_STEPS,
            rule,
            words=len(self.words),
            states=len(automaton.ends[1]),
            vocab_size=vocab_size,
        )
        state = self._states(automaton, beams, vocab_size)
        blocked = _rows(automaton.hits, state, vocab_size)
        at_limit = ops.greater_equal(beams.lengths + 1, ops.convert_to_tensor(search.limits)[..., None])
        ends = ops.logical_and(at_limit[..., None], _rows(automaton.ends, state, vocab_size))
        return ops.logical_or(blocked, ends)

    def _states(self, automaton, beams, vocab_size):
        """Returns the state of the automaton after each hypothesis, int32 `(batch, width)`."""
        usual = ops.convert_to_tensor(_padded(automaton.usual, vocab_size))
        sources, ids = automaton.steps
        keys = ops.convert_to_tensor(sources * np.int32(vocab_size) + ids)
        targets = ops.convert_to_tensor(automaton.targets)
        state = ops.zeros_like(beams.lengths)
        # A longer past changes nothing.
        for back in range(automaton.memory, 0, -1):
            slot = beams.lengths - back
            token = ops.take_along_axis(beams.tokens, ops.maximum(slot, 0)[..., None], axis=-1)[..., 0]
            key = state * vocab_size + token
            place = ops.minimum(ops.searchsorted(keys, ops.reshape(key, (-1,))), len(ids) - 1)
            place = ops.reshape(place, ops.shape(key))
            found = ops.equal(ops.take(keys, place), key)
            state = ops.where(slot < 0, 0, ops.where(found, ops.take(targets, place), ops.take(usual, token)))
        return state


class _Automaton(NamedTuple):
    """What a search needs to know of the bytes that were written.

    count: Number of ids. memory: Number of tokens that decide the state.
    usual: int32 `(count,)`, the state after each id from most states.
    steps, targets: The other steps in order, two int32 `(n,)` of states and ids; int32 `(n,)`, the states after them.
    hits, ends: The ids that would complete a word, and those after which a text may not end: bool `(rows, count)`,
        and the row of each state, int32 `(states,)`.
    """

    count: int
    memory: int
    usual: np.ndarray
    steps: tuple
    targets: np.ndarray
    hits: tuple
    ends: tuple


def written_by(tokenizer):
    """Returns the bytes that each id of a tokenizer adds to a text, as one str: a constraint is saved with it."""
    return BETWEEN.join(each.decode("latin-1") for each in tokenizer.written())


def bytes_of_ids(written):
    """Returns the bytes of each id, a list, from what `written_by` returned."""
    return [each.encode("latin-1") for each in written.split(BETWEEN)]


@functools.lru_cache(8)
def _automaton(words, written):
    texts = bytes_of_ids(written)
    spellings = _Words(words)
    after, completes, whole = spellings.tables()
    order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
    columns = [
        [texts[i][place] for i in order if len(texts[i]) > place] for place in range(len(texts[order[0]]))
    ]
    columns = [np.array(column) for column in columns]
    empty = np.array([not text for text in texts])

    def run(state):
        """Returns the state after each id, and whether the id completes a word. One without text is an end."""
        states, hits = np.full(len(texts), state), np.zeros(len(texts), bool)
        for column in columns:
            rows = states[: len(column)]
            hits[: len(column)] |= completes[rows, column]
            states[: len(column)] = after[rows, column]
        states[order], hits[order] = states.copy(), hits.copy()
        return np.where(empty, 0, states), np.where(empty, whole[state], hits)

    usual, _ = run(spellings.inside)
    # From which states a token begins: that of the start, and those after a token.
    found, waiting, steps, hits, ends = {0}, [0], [], {}, {}
    while waiting:
        state = waiting.pop()
        targets, hits[state] = run(state)
        ends[state] = whole[targets]
        others = np.flatnonzero(targets != usual)
        steps += [(state, i, targets[i]) for i in others]
        new = {*np.unique(targets).tolist()} - found
        found |= new
        waiting += new
    none = np.zeros(len(texts), bool)
    tables = [_unique_rows([each.get(i, none) for i in range(len(after))]) for each in (hits, ends)]
    # No search is in the state of the last row.
    sources, ids, targets = np.array([*sorted(steps), (len(after), 0, 0)], "int32").T
    return _Automaton(
        len(texts), spellings.longest + 2, usual.astype("int32"), (sources, ids), targets, *tables
    )


class _Words:
    """Reads bytes, and says where a forbidden word is complete.

    A state is a set of places, and the kind of the character before. A place is the number of a word, how many of its
    characters were read, and the bytes of the next one that were read.
    """

    def __init__(self, words):
        self.spelled = [[_spellings(character) for character in word] for word in words]
        self.kinds = [(_kind(word[0]), _kind(word[-1])) for word in words]
        self.longest = max(sum(max(map(len, each)) for each in word) for word in self.spelled)

    def tables(self):
        """Numbers the states; 0 is the start, and `inside` that in a word without a place.

        Returns:
            The state after each byte and whether the byte completes a word, a next letter of which would make it
            longer, `(states, 256)`; and whether a text that ends in a state ends with a word, bool `(states,)`.
        """
        states = [(frozenset(), BOUNDARY), (frozenset(), LETTER)]
        numbers, self.inside = {state: i for i, state in enumerate(states)}, 1
        after, completes = [], []
        for state in states:
            row = [self._step(*state, byte) for byte in range(256)]
            for each, _ in row:
                if each not in numbers:
                    numbers[each] = len(states)
                    states.append(each)
            after.append([numbers[each] for each, _ in row])
            completes.append([hit for _, hit in row])
        whole = [any(read == len(self.spelled[i]) for i, read, _ in places) for places, _ in states]
        return np.array(after), np.array(completes), np.array(whole)

    def _step(self, places, before, byte):
        begins, kind = not 0x80 <= byte < 0xC0, _kind_after(before, byte)
        if begins:
            starts = before == BOUNDARY
            places = {
                *places,
                *((i, 0, b"") for i, (k, _) in enumerate(self.kinds) if starts or k == BOUNDARY),
            }
        after, hit = set(), False
        for i, read, part in places:
            if read == len(self.spelled[i]):
                if isinstance(kind, _Begun):
                    after.add((i, read, part))
                hit = hit or kind in (BOUNDARY, HANGUL)
                continue
            for spelling in self.spelled[i][read]:
                if spelling == part + bytes([byte]):
                    is_last = read + 1 == len(self.spelled[i])
                    # Where words have no blanks between them, a word ends with its last letter.
                    ends = is_last and self.kinds[i][1] != LETTER
                    hit = hit or ends
                    after |= set() if ends else {(i, read + 1, b"")}
                    # More white space may follow.
                    after |= {(i, read, b"")} if self.spelled[i][read] is BLANKS else set()
                elif spelling.startswith(part + bytes([byte])):
                    after.add((i, read, part + bytes([byte])))
        return (frozenset(after), kind), hit


BLANKS = sorted(chr(i).encode() for i in range(0x3001) if chr(i).isspace())


def _spellings(character):
    """Returns the bytes of a character in all cases, or those of all white space for a blank: a sorted list."""
    if character.isspace():
        return BLANKS
    cases = {character, character.lower(), character.upper(), character.title()}
    return sorted({each.encode() for each in cases | set(_same_letters()[character.casefold()])})


@functools.cache
def _same_letters():
    """Returns the characters with each casefold, a dict of lists: sigma has three."""
    letters = collections.defaultdict(list)
    # Above are ideographs and symbols.
    for code in range(0x20000):
        if not 0xD800 <= code < 0xE000 and len(chr(code).casefold()) == 1:
            letters[chr(code).casefold()].append(chr(code))
    return letters


def _kind(character):
    kind = BOUNDARY
    for byte in character.encode():
        kind = _kind_after(kind, byte)
    return kind


def _kind_after(kind, byte):
    """Returns the kind of a character after one more of its bytes: a `_Begun` where a later byte decides."""
    if byte < 0x80:
        return LETTER if chr(byte).isalnum() else BOUNDARY
    if byte >= 0xC0:
        # Of the characters of four bytes, few are letters of an alphabet.
        return _kind_of(bytes([byte])) if 0xC2 <= byte < 0xF0 else BOUNDARY
    return kind.kinds[byte - 0x80] if isinstance(kind, _Begun) else kind


class _Begun:
    """The first bytes of a character: the kind after each next byte from 0x80, a tuple."""

    def __init__(self, kinds):
        self.kinds = kinds


# One object for equal kinds, so that it is compared by its identity.
_begun = functools.cache(_Begun)


@functools.cache
def _kind_of(content):
    """Returns the kind of a character of two or three bytes, of which all or the first ones are given."""
    if len(content) < (2 if content[0] < 0xE0 else 3):
        kinds = tuple(_kind_of(content + bytes([byte])) for byte in range(0x80, 0xC0))
        return kinds[0] if len(set(kinds)) == 1 else _begun(kinds)
    character = content.decode("utf-8", "replace")
    code = ord(character[0])
    if 0xAC00 <= code < 0xD7A4:
        return HANGUL
    is_letter = unicodedata.category(character[0])[0] in "LMN" and len(character) == 1
    return LETTER if is_letter and not any(low <= code <= high for low, high in WITHOUT_BLANKS) else BOUNDARY


def _unique_rows(rows):
    """Returns the different rows, bool `(n, count)`, and the number of each one's row, int32 `(rows,)`."""
    numbers, unique = {}, []
    for row in rows:
        if row.tobytes() not in numbers:
            numbers[row.tobytes()] = len(unique)
            unique.append(row)
    return np.stack(unique), np.array([numbers[row.tobytes()] for row in rows], "int32")


def _rows(table, state, vocab_size):
    """Returns the row of each state, bool `(batch, width, vocab_size)`."""
    rows, places = table
    more = ((0, 0), (0, vocab_size - rows.shape[1]))
    rows = ops.convert_to_tensor(np.pad(rows, more))
    return ops.take(rows, ops.take(ops.convert_to_tensor(places), state, axis=0), axis=0)


def _padded(ids, vocab_size):
    """Adds 0 for the ids that a tokenizer lacks and a model has."""
    return np.pad(ids, (0, vocab_size - len(ids)))
