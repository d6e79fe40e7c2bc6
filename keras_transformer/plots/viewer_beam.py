"""Records a beam search: every hypothesis that it held."""

import dataclasses
from typing import Any

import numpy as np

from keras_transformer.decoding import Beam, Search, decode


@dataclasses.dataclass(frozen=True)
class RecordingBeam(Beam):
    """A beam search that keeps the open hypotheses of each step and the best that have finished.

    steps: A list that gets `(beams, finished, limits)` at each step.
    """

    steps: Any = dataclasses.field(default_factory=list)

    def advance(self, beams, extra, prediction, search):
        beams, extra, *others = super().advance(beams, extra, prediction, search)
        self.steps.append((beams, self.end(beams, extra, search), search.limits))
        return beams, extra, *others


def record_search(translator, source):
    """Searches with a translator's beam, outside of any graph, and records all hypotheses.

    Args:
        translator: A `Translator` with a `Beam`.
        source: int32 `(1, source_len)`.

    Returns:
        `Hypotheses`, as many as the beam is wide. And a list of dicts, in which parents come first: `token`, `parent`
        (a place in the list, -1 for the first), `sum` of the log probabilities, and `rank`, the score of a finished
        hypothesis or None.
    """
    model = translator.model
    strategy = {field.name: getattr(translator.strategy, field.name) for field in dataclasses.fields(Beam)}
    # The best of as many results as the beam is wide is the best of a search for one result.
    beam = RecordingBeam(**{**strategy, "n_best": strategy["width"]})
    step, cache, prompt, _ = model.start(source, beam.width)
    source_len = source.shape[1]
    search = Search(
        translator.limits.of(source_len),
        np.array([source_len], "int32"),
        eos_ids=(model.eos_id,),
        pad_id=model.pad_id,
    )
    result = decode(step, cache, beam, prompt, search, constraints=translator.constraints)
    places = {(): 0}
    nodes = [{"token": model.bos_id, "parent": -1, "sum": 0.0, "rank": None}]

    def add(ids, score, rank=None):
        if ids not in places and ids[:-1] in places:
            places[ids] = len(nodes)
            nodes.append({"token": ids[-1], "parent": places[ids[:-1]], "sum": score, "rank": rank})

    for beams, ended, limits in beam.steps:
        for ids, score in hypotheses(ended):
            add(ids, score, score / float(beam.divisor(len(ids))))
        for ids, score in hypotheses(beams):
            # Another hypothesis ended too late to be a result.
            if ids[-1] != model.eos_id and len(ids) < int(limits[0]):
                add(ids, score)
    return result, nodes


def hypotheses(beams):
    """Yields the ids and the score of each possible hypothesis of the first row of `Beams` or `Hypotheses`."""
    for row, length, score in zip(*(np.array(part)[0] for part in beams[:3]), strict=True):
        if score > -np.inf:
            yield tuple(row[:length].tolist()), float(score)
