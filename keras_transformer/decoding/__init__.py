"""Decoding: strategies, constraints and one loop, which knows a step function and no model."""

from keras_transformer.decoding.beam import Beam
from keras_transformer.decoding.constraints import (
    Constraint,
    ExcludeTokens,
    ForcedFirstToken,
    MaxLength,
    MinLength,
    NoRepeatNgram,
    PresencePenalty,
    RepetitionPenalty,
    SuppressTokens,
)
from keras_transformer.decoding.diverse import DiverseBeam
from keras_transformer.decoding.hypotheses import Greedy, Hypotheses, LoggedHypotheses, Search, Strategy
from keras_transformer.decoding.loop import decode
from keras_transformer.decoding.phrases import PhraseBeam
from keras_transformer.decoding.sample import Sample, feature_keys, row_keys
from keras_transformer.decoding.speech import SpeechIds, SuppressFirstTokens, TimestampRules
from keras_transformer.decoding.stops import StopStrings
from keras_transformer.decoding.words import ForbidWords


def _by_name(*classes):
    return {cls.__name__: cls for cls in classes}


STRATEGIES = _by_name(Greedy, Beam, PhraseBeam, DiverseBeam, Sample)
CONSTRAINTS = _by_name(
    MinLength,
    MaxLength,
    RepetitionPenalty,
    PresencePenalty,
    NoRepeatNgram,
    SuppressTokens,
    SuppressFirstTokens,
    ExcludeTokens,
    ForcedFirstToken,
    TimestampRules,
    ForbidWords,
    StopStrings,
)

__all__ = [
    "CONSTRAINTS",
    "STRATEGIES",
    "Beam",
    "Constraint",
    "DiverseBeam",
    "ExcludeTokens",
    "ForbidWords",
    "ForcedFirstToken",
    "Greedy",
    "Hypotheses",
    "LoggedHypotheses",
    "MaxLength",
    "MinLength",
    "NoRepeatNgram",
    "PhraseBeam",
    "PresencePenalty",
    "RepetitionPenalty",
    "Sample",
    "Search",
    "SpeechIds",
    "StopStrings",
    "Strategy",
    "SuppressFirstTokens",
    "SuppressTokens",
    "TimestampRules",
    "decode",
    "feature_keys",
    "row_keys",
]
