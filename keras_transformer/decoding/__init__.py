"""Decoding: strategies and constraints over one loop, which knows a step function and no model."""

from keras_transformer.decoding.beam import Beam
from keras_transformer.decoding.beams import Hypotheses
from keras_transformer.decoding.constraints import (
    Constraint,
    ExcludeTokens,
    ForcedFirstToken,
    MaxLength,
    MinLength,
    NoRepeatNgram,
    RepetitionPenalty,
    SuppressTokens,
)
from keras_transformer.decoding.loop import decode
from keras_transformer.decoding.sample import Sample, row_keys
from keras_transformer.decoding.strategies import Greedy, Strategy

STRATEGIES = {cls.__name__: cls for cls in (Greedy, Beam, Sample)}
CONSTRAINTS = {
    cls.__name__: cls
    for cls in (
        MinLength,
        MaxLength,
        RepetitionPenalty,
        NoRepeatNgram,
        SuppressTokens,
        ExcludeTokens,
        ForcedFirstToken,
    )
}

__all__ = [
    "CONSTRAINTS",
    "STRATEGIES",
    "Beam",
    "Constraint",
    "ExcludeTokens",
    "ForcedFirstToken",
    "Greedy",
    "Hypotheses",
    "MaxLength",
    "MinLength",
    "NoRepeatNgram",
    "RepetitionPenalty",
    "Sample",
    "Strategy",
    "SuppressTokens",
    "decode",
    "row_keys",
]
