"""T5: relative positions in self-attention alone, and targets that begin with padding."""

import math

import keras
import numpy as np
import pytest
from cases import BUCKETS, DISTANCE, GATED, HEADS, PAD, T5_PAIR
from cases import t5 as small
from contracts import as_numpy, assert_close
from reference import softmax, under, weights_of

from keras_transformer.models import T5

D_MODEL = 10


def test_targets_begin_with_padding():
    assert (small().pad_id, small().bos_id, small().eos_id) == (0, 0, 1)


class Reference:
    """The model in NumPy, from section 2.1 of the paper and the code that it points to."""

    def __init__(self, model, gated):
        self.weights, self.gated = weights_of(model), gated

    def logits(self, source, target):
        embeddings = self.weights["embeddings/tokens/embeddings"]
        real = (source != PAD)[:, None, None]
        past = np.tril(np.ones((1, 1, target.shape[1], target.shape[1]), bool))
        states = self.stack("encoder", embeddings[source], real)
        x = self.stack("decoder", embeddings[target], past, states, real)
        if self.gated:
            return x @ self.weights["output_embedding/embeddings"].T
        return x * D_MODEL**-0.5 @ embeddings.T

    def stack(self, name, x, allowed, memory=None, memory_allowed=None):
        weights = under(self.weights, name)
        # The layers share one table, which the first of them made.
        (table,) = (value for path, value in weights.items() if value.shape == (BUCKETS, HEADS))
        buckets = [[bucket(k - q, name == "encoder") for k in range(x.shape[1])] for q in range(x.shape[1])]
        bias = np.moveaxis(table[np.array(buckets)], -1, 0)[None]
        for i in range(2 if name == "encoder" else 3):
            layer = under(weights, f"layer_{i}")
            h = normed(x, under(layer, "self_attention_residual/norm"))
            x = x + attended(under(layer, "self_attention"), h, h, allowed, bias)
            if memory is not None:
                h = normed(x, under(layer, "cross_attention_residual/norm"))
                x = x + attended(under(layer, "cross_attention"), h, memory, memory_allowed, 0.0)
            h = normed(x, under(layer, "feed_forward_residual/norm"))
            inner = h @ layer["feed_forward/inner/kernel"]
            if self.gated:
                gate = h @ layer["feed_forward/gate/kernel"]
                inner = (
                    inner * 0.5 * gate * (1 + np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
                )
            else:
                inner = np.maximum(inner, 0)
            x = x + inner @ layer["feed_forward/outer/kernel"]
        return normed(x, under(weights, "norm"))


def normed(x, weights):
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-6) * weights["scale"]


def attended(weights, query, memory, allowed, bias):
    q, k, v = (
        np.einsum("btf,fhd->bhtd", x, weights[f"{name}/kernel"])
        for x, name in ((query, "query"), (memory, "key"), (memory, "value"))
    )
    scores = np.einsum("bhtd,bhsd->bhts", q, k) + bias
    shares = softmax(scores, np.broadcast_to(allowed, scores.shape))
    context = np.einsum("bhts,bhsd->bthd", shares, v)
    return np.tensordot(context, weights["attention_output/kernel"], axes=([2, 3], [0, 1]))


def bucket(distance, both_sides):
    """Half of a side's buckets for single distances, the others for ranges that grow to the largest distance."""
    count = BUCKETS // 2 if both_sides else BUCKETS
    far = abs(distance) if both_sides else max(-distance, 0)
    if far >= count // 2:
        share = math.log(far / (count // 2)) / math.log(DISTANCE / (count // 2))
        far = min(count // 2 + int(share * (count - count // 2) + 1e-9), count - 1)
    return far + (count if both_sides and distance > 0 else 0)


@pytest.mark.parametrize("arguments", [{}, GATED], ids=["1.0", "1.1"])
def test_logits_agree_with_numpy(arguments):
    model = small(**arguments)
    expected = Reference(model, bool(arguments)).logits(**T5_PAIR)
    assert np.ptp(expected) > 1
    assert_close(model(T5_PAIR), expected, 1e-4)


@pytest.mark.slow
def test_the_first_scores_and_logits_are_of_order_one():
    """Nothing scales the scores and the embeddings: their initial weights do."""
    keras.utils.set_random_seed(0)
    model = T5(97, num_layers=1, d_model=128, num_heads=4, key_dim=64, d_ff=64)
    ids = np.random.default_rng(0).integers(2, 97, (4, 16))
    assert 0.3 < as_numpy(model({"source": ids, "target": ids})).std() < 3
    layer = model.encoder.layers[0]
    h = layer.self_attention_residual.before(model.source.tokens(ids))
    query, memory = layer.self_attention.query_dense(h), layer.self_attention.project_memory(h)
    scores = np.einsum("bthd,bhsd->bhts", *map(as_numpy, (query, memory.key)))
    assert 0.3 < scores.std() < 3
