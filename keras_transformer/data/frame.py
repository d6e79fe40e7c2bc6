"""The ids around the texts of a pair."""

import dataclasses

from keras_transformer.checks import check_count


@dataclasses.dataclass(frozen=True)
class Frame:
    """The ids that stand around the tokens of a pair of texts, in what an encoder-decoder reads and writes.

    Attributes:
        pad_id: The id of padding.
        bos_id: The id at the start of the target inputs.
        eos_id: The id at the end of the targets.
        source_start: Ids before the tokens of each source, such as the id of its language; a sequence of int.
        source_end: Ids after the tokens of each source; None for `eos_id` alone, as `end_of_source` says.
        target_start: Ids at the start of each target, such as the id of its language. The target inputs have them after
            `bos_id`.

    >>> frame = Frame(source_start=(7,))
    >>> frame.source([11, 13]), frame.targets([17])
    ([7, 11, 13, 3], [17, 3])
    >>> frame.target_inputs([17])
    [2, 17]
    >>> dataclasses.replace(frame, eos_id=5).source([11])
    [7, 11, 5]
    """

    pad_id: int = 0
    bos_id: int = 2
    eos_id: int = 3
    source_start: tuple = ()
    source_end: tuple | None = None
    target_start: tuple = ()

    def __post_init__(self):
        # A `source_end` of None stays None: another `eos_id`, by `dataclasses.replace`, has another end.
        given = ("source_end",) if self.source_end is not None else ()
        for name in ("source_start", *given, "target_start"):
            ids = tuple(getattr(self, name))
            for each in ids:
                check_count(0, **{name: each})
            object.__setattr__(self, name, ids)

    @property
    def end_of_source(self):
        """The ids after the tokens of each source, a tuple."""
        return (self.eos_id,) if self.source_end is None else self.source_end

    def source(self, ids):
        """Returns the ids of a source for the model, a list."""
        return [*self.source_start, *ids, *self.end_of_source]

    def targets(self, ids):
        """Returns the ids that the model has to write, a list."""
        return [*self.target_start, *ids, self.eos_id]

    def target_inputs(self, ids):
        """Returns the ids that the model reads while it writes, a list."""
        return [self.bos_id, *self.target_start, *ids]
