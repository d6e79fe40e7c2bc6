"""Writing what is heard: the ids with a meaning in a transcript, and its rules as constraints of a search."""

import dataclasses
from typing import Any

import keras

from keras_transformer.checks import check, check_count
from keras_transformer.decoding.constraints import Constraint, SuppressTokens
from keras_transformer.decoding.hypotheses import NEVER
from keras_transformer.execution import ops
from keras_transformer.fields import Fields


@keras.saving.register_keras_serializable("keras_transformer")
@dataclasses.dataclass(frozen=True)
class SuppressFirstTokens(SuppressTokens):
    """Forbids tokens as the first one after the prefix, such as a blank or the end of a transcript.

    Radford et al., 2022, "Robust Speech Recognition via Large-Scale Weak Supervision" (Whisper). A search ranks as if
    the model did not have them there.

    Args:
        token_ids: list or tuple of int.
        begin: Number of tokens of the prefix, an int; or an array or a tensor `(batch,)`.

    Raises:
        ValueError: If there is no id, or a number is negative.

    The likeliest first token is here 2, and the next one 4:

    >>> from keras_transformer.decoding import Greedy, Search, decode
    >>> def step(tokens, cache, index):
    ...     return ops.one_hot(tokens + 1, 6) + 0.5 * ops.one_hot(tokens + 3, 6), cache
    >>> rules = [SuppressFirstTokens([2])]
    >>> decode(step, (), Greedy(), [1], Search(limits=2), constraints=rules).tokens.numpy().tolist()
    [[[4, 5]]]
    """

    begin: Any = 0

    def __post_init__(self):
        super().__post_init__()
        check_count(**self.plain(begin="int32"))

    def blocked(self, beams, search, vocab_size):
        return None

    def adjusted(self, logits, beams, search):
        is_first = ops.equal(beams.lengths, _column(self.begin))[..., None]
        suppressed = super().blocked(beams, search, logits.shape[-1])
        return ops.cond(
            ops.any(is_first),
            lambda: ops.where(ops.logical_and(is_first, suppressed), NEVER, logits),
            lambda: logits,
        )


@keras.saving.register_keras_serializable("keras_transformer")
@dataclasses.dataclass(frozen=True)
class TimestampRules(Constraint):
    """Makes a transcript of segments, each between the timestamps of its begin and its end.

    Radford et al., 2022 (Whisper), section 4.5, and the program of that paper. A transcript begins with a timestamp.
    Timestamps come in pairs, the end of a segment and the begin of the next one, and never decrease. A timestamp is
    taken where all timestamps together are likelier than the likeliest other token. A search ranks as if the model did
    not have the forbidden tokens.

    Args:
        first_id: The id of the timestamp 0; all ids from it on are timestamps.
        eos_id: The id that ends a transcript. The ids below are text.
        latest_begin: The first timestamp of a transcript is at most so many ids above `first_id`; None for any.
        begin: Number of tokens of the prefix, an int; or an array or a tensor `(batch,)`.
        rows: Whether the rules hold, a bool; or an array or a tensor `(batch,)`.

    Raises:
        ValueError: If a number is negative, or `eos_id` is a timestamp.

    The likeliest token is here always 2, and 4 is the time 0:

    >>> from keras_transformer.decoding import Greedy, Search, decode
    >>> def step(tokens, cache, index):
    ...     return 9.0 * ops.one_hot(0 * tokens + 2, 8), cache
    >>> rules = [TimestampRules(first_id=4, eos_id=3)]
    >>> decode(step, (), Greedy(), [1], Search(limits=4), constraints=rules).tokens.numpy().tolist()
    [[[4, 2, 2, 2]]]
    """

    first_id: int
    eos_id: int
    latest_begin: int | None = 50
    begin: Any = 0
    rows: Any = True

    def __post_init__(self):
        check_count(first_id=self.first_id, eos_id=self.eos_id, latest_begin=self.latest_begin or 0)
        check_count(**self.plain(begin="int32"))
        self.plain(rows="bool")
        rule = "`eos_id` must be below `first_id`."
        check(self.eos_id < self.first_id, rule, eos_id=self.eos_id, first_id=self.first_id)

    def adjusted(self, logits, beams, search):
        vocab_size = logits.shape[-1]
        check_count(0, vocab_size - 1, first_id=self.first_id)
        rows = _column(self.rows, "bool")[..., None]
        # Most recordings are short and get no timestamps: then no rule reads the vocabulary.
        return ops.cond(
            ops.any(rows), lambda: ops.where(rows, self._ruled(logits, beams), logits), lambda: logits
        )

    def _ruled(self, logits, beams):
        """Applies the rules to the logits of all rows."""
        first, vocab_size = self.first_id, logits.shape[-1]
        written = (beams.lengths - _column(self.begin))[..., None]
        last, before = (
            ops.take_along_axis(beams.tokens, ops.maximum(beams.lengths - i, 0)[..., None], axis=-1)
            for i in (1, 2)
        )
        is_first = ops.equal(written, 0)
        after_stamp = ops.logical_and(written >= 1, last >= first)
        after_two = ops.logical_or(written < 2, before >= first)
        opened = ops.logical_and(after_stamp, ops.logical_not(after_two))
        newest = ops.max(ops.maximum(beams.tokens, first - 1), axis=-1, keepdims=True)
        # A segment is not empty: only a second timestamp may repeat the newest one.
        lowest = ops.where(opened, newest, newest + 1)
        lowest = ops.where(ops.logical_and(after_stamp, after_two), vocab_size, lowest)
        latest = vocab_size if self.latest_begin is None else first + self.latest_begin
        stamp_ids = ops.arange(first, vocab_size, dtype="int32")
        allowed = ops.logical_and(stamp_ids >= lowest, stamp_ids <= ops.where(is_first, latest, vocab_size))
        stamps = ops.where(allowed, logits[..., first:], NEVER)
        lowest = ops.where(is_first, first, ops.where(opened, self.eos_id, 0))
        # The id before the timestamps says that there are none.
        ids = ops.arange(first, dtype="int32")
        allowed = ops.logical_and(ids >= lowest, ids < first - 1)
        others = ops.where(allowed, logits[..., :first], NEVER)
        together = ops.logsumexp(stamps, axis=-1, keepdims=True)
        others = ops.where(together > ops.max(others, axis=-1, keepdims=True), NEVER, others)
        return ops.concatenate([others, stamps], axis=-1)


def _column(x, dtype="int32"):
    """Returns one value, or a value for each row, as `(1, 1)` or `(batch, 1)`."""
    return ops.reshape(ops.convert_to_tensor(x, dtype), (-1, 1))


def rule_of_choice(name, known, only=None):
    """Returns the rule of a language or a task, a str: its choices in the order of the alphabet.

    >>> rule_of_choice("language", {"ko": 8, "en": 7})
    '`language` must be one of en, ko.'

    Args:
        name: "language" or "task".
        known: Iterable of str, the choices.
        only: The only value of a model without choices.
    """
    return f"`{name}` must be one of {', '.join(sorted(known)) or repr(only)}."


@keras.saving.register_keras_serializable("keras_transformer")
@dataclasses.dataclass(frozen=True)
class SpeechIds(Fields):
    """The ids with a meaning in a model that writes what it hears.

    Radford et al., 2023, "Robust Speech Recognition via Large-Scale Weak Supervision", section 2.3. An output begins
    with the model's `bos_id`, and goes on with `prompt(...)`.

    Attributes:
        languages: A dict from the code of a language, such as "ko", to its id; empty where there is one language.
        tasks: A dict from a task, "transcribe" or "translate", to its id; empty where there is one task.
        language, task: What an output is in where nobody says; None where the file does not say either.
        no_timestamps_id: The id that asks for a text without times, or None. The ids after it are times, two hundredths
            of a second apart.
        suppressed: The ids that no output has, a tuple.
        suppressed_first: The ids that do not follow the prompt, a tuple.
        max_first_timestamp: Number of the last time that may follow the prompt; None for any.
        previous_id: The id that begins the text before a prompt, or None.
        alignment_heads: The heads of attention that follow the audio: pairs of a layer of the decoder and a head, a
            tuple.

    >>> ids = SpeechIds({"en": 7, "ko": 8}, {"transcribe": 9, "translate": 10}, language="ko", no_timestamps_id=11)
    >>> ids.prompt(task="translate"), ids.first_timestamp_id
    ([8, 10, 11], 12)
    """

    languages: dict = dataclasses.field(default_factory=dict)
    tasks: dict = dataclasses.field(default_factory=dict)
    language: str | None = None
    task: str | None = None
    no_timestamps_id: int | None = None
    suppressed: tuple = ()
    suppressed_first: tuple = ()
    max_first_timestamp: int | None = None
    previous_id: int | None = None
    alignment_heads: tuple = ()

    def __post_init__(self):
        for name in ("languages", "tasks"):
            ids, rule = getattr(self, name), f"`{name}` must be a dict from a str to an id."
            check(isinstance(ids, dict) and all(isinstance(key, str) for key in ids), rule, **{name: ids})
            for token_id in ids.values():
                check_count(**{name: token_id})
        for name, known in (("language", self.languages), ("task", self.tasks)):
            value = getattr(self, name)
            check(value is None or value in known, rule_of_choice(name, known), **{name: value})
        for name in ("no_timestamps_id", "max_first_timestamp", "previous_id"):
            if getattr(self, name) is not None:
                check_count(**{name: getattr(self, name)})
        for name in ("suppressed", "suppressed_first"):
            for token_id in getattr(self, name):
                check_count(**{name: token_id})
            object.__setattr__(self, name, tuple(getattr(self, name)))
        object.__setattr__(self, "alignment_heads", tuple(map(tuple, self.alignment_heads)))

    @property
    def first_timestamp_id(self):
        """The id of the time 0; all ids from it on are times. None for a model without times."""
        return None if self.no_timestamps_id is None else self.no_timestamps_id + 1

    @property
    def no_speech_id(self):
        """The id whose probability after `bos_id` is that of no speech; None for a model without times."""
        return None if self.no_timestamps_id is None else self.no_timestamps_id - 1

    def prompt(self, language=None, task=None, timestamps=False):
        """Returns the ids that follow `bos_id`: a list of the language, the task, and whether there are times.

        Args:
            language: A code of `languages`; None for `self.language`.
            task: One of `tasks`; None for `self.task`, or else "transcribe".
            timestamps: Whether the model writes times.

        Raises:
            ValueError: If the model has no such language, task, or text without times.

        >>> SpeechIds({"ko": 7}, {"transcribe": 5}, no_timestamps_id=6).prompt("ko")
        [7, 5, 6]
        """
        language = self.language if language is None else language
        task = (self.task or "transcribe") if task is None else task
        codes, tasks = [*self.languages] or [None], [*self.tasks] or ["transcribe"]
        check(language in codes, rule_of_choice("language", self.languages), language=language)
        check(task in tasks, rule_of_choice("task", tasks), task=task)
        rule = "`timestamps` must be True for a model without `no_timestamps_id`."
        check(timestamps or self.no_timestamps_id is not None, rule, timestamps=timestamps)
        ids = (
            self.languages.get(language),
            self.tasks.get(task),
            None if timestamps else self.no_timestamps_id,
        )
        return [each for each in ids if each is not None]
