"""Every strategy with every constraint on one small model; run as a script it prints what they write, as JSON.

usage: python searches.py portable|compiled|eager [STRATEGY+CONSTRAINTS ...]
"""

import json
import sys

import keras
import numpy as np

from keras_transformer.decoding import (
    Beam,
    DiverseBeam,
    ForcedFirstToken,
    Greedy,
    MaxLength,
    MinLength,
    NoRepeatNgram,
    RepetitionPenalty,
    Sample,
    SuppressTokens,
)
from keras_transformer.models import Transformer

VOCAB, PAD, BOS, EOS, MAX_LENGTH = 23, 0, 2, 3, 11
SOURCE = np.array([[5, 6, 7, 3, 0], [9, 8, 11, 6, 3], [4, 3, 0, 0, 0]], "int32")
PREFIX = np.array([[7, 5, 0], [4, 0, 0], [0, 0, 0]], "int32")
STRATEGIES = {
    "greedy": Greedy(),
    "beam": Beam(3, n_best=2),
    "diverse": DiverseBeam(4, groups=2, n_best=4, normalization="length"),
    "sample": Sample(seed=3),
    "cut sample": Sample(0.9, top_k=9, top_p=0.95, seed=4, min_p=0.01, typical_p=0.95, num_samples=2),
}
CONSTRAINTS = {
    "free": (),
    "min": (MinLength(5, ratio=0.5),),
    "max": (MaxLength(2, ratio=1.0),),
    "penalty": (RepetitionPenalty(1.4),),
    "ngram": (NoRepeatNgram(2),),
    "suppress": (SuppressTokens((1, 5, 17)),),
    "first": (ForcedFirstToken(9),),
    "all": (
        MinLength(4),
        MaxLength(3, ratio=2.0),
        RepetitionPenalty(1.3),
        NoRepeatNgram(3),
        SuppressTokens((1, 17)),
        ForcedFirstToken(8),
    ),
}


def writer(**arguments):
    """A model whose targets end at different lengths."""
    model = Transformer(VOCAB, num_layers=2, d_model=16, num_heads=2, d_ff=32, dropout=0.0, **arguments)
    rng = np.random.default_rng(8)
    for weight in model.weights:
        noise = rng.normal(size=weight.shape, scale=0.45)
        weight.assign(noise + 1.0 if weight.path.endswith(("gamma", "scale")) else noise)
    embeddings = keras.ops.convert_to_numpy(model.target.tokens.embeddings).copy()
    embeddings[EOS] *= 1.8  # so that some rows end early; no two hypotheses are near a tie
    model.target.tokens.embeddings.assign(embeddings)
    return model


def written(model, strategy, constraints, prefix, mode, max_length=None):
    """Tokens, lengths and scores, in one of the ways a search can be run."""
    arguments = {"max_length": max_length, "constraints": constraints, "prefix": prefix}
    if mode == "eager":
        found = model.search(SOURCE, strategy, **arguments)
    else:
        found = model.generate(SOURCE, strategy, jit_compile=mode == "compiled", **arguments)
    return [keras.ops.convert_to_numpy(part).tolist() for part in found]


def assert_same(found, expected):
    """Equal tokens and lengths, however far the buffers go; scores within rounding."""
    found, expected = ([keras.ops.convert_to_numpy(part) for part in each] for each in (found, expected))
    length = min(found[0].shape[2], expected[0].shape[2])
    for part in (found, expected):
        assert np.all(part[0][:, :, length:] == PAD)
    np.testing.assert_array_equal(found[0][:, :, :length], expected[0][:, :, :length])
    np.testing.assert_array_equal(found[1], expected[1])
    np.testing.assert_allclose(found[2], expected[2], rtol=1e-4)


def main():
    model, mode, pairs = writer(), sys.argv[1], sys.argv[2:]
    for pair in pairs or (f"{s}+{c}" for s in STRATEGIES for c in CONSTRAINTS):
        name, names = pair.split("+")
        tokens, lengths, _ = written(model, STRATEGIES[name], CONSTRAINTS[names], None, mode, MAX_LENGTH)
        print(json.dumps([name, names, tokens, lengths]), flush=True)


if __name__ == "__main__":
    main()
