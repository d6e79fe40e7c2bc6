"""Several models that translate as one."""

import math
from typing import NamedTuple

import keras

from keras_transformer.checks import check
from keras_transformer.decoding.loop import with_methods
from keras_transformer.execution import ops
from keras_transformer.execution.inference import has_int8_weights
from keras_transformer.layers.attention import pack, unpack
from keras_transformer.models.base import BaseModel
from keras_transformer.models.generation import Generation, Scores
from keras_transformer.models.transformer import EncoderDecoder

SHARED = ("source_vocab_size", "target_vocab_size", "pad_id", "bos_id", "eos_id", "stop_ids", "reads_ids")


class _JointCache(NamedTuple):
    """The caches of several models, as one cache."""

    caches: tuple

    @property
    def steps(self):
        # Caches that grow have grown alike. One of a fixed size has room for more steps than any search takes.
        steps = [cache.steps for cache in self.caches]
        tensors = [each for each in steps if not isinstance(each, int)]
        return tensors[0] if tensors else min(steps)

    def reordered(self, parents):
        return _JointCache(tuple(cache.reordered(parents) for cache in self.caches))

    def grown(self, steps):
        return _JointCache(tuple(cache.grown(steps) for cache in self.caches))

    def grown_further(self, steps):
        return _JointCache(tuple(cache.grown_further(steps) for cache in self.caches))


@keras.saving.register_keras_serializable("keras_transformer")
class Ensemble(Generation, BaseModel):
    """Several encoder-decoder models that write one translation: `log(mean_i(p_i(y_t | y_<t, x)))` scores a token.

    The models may differ in everything but their vocabularies and special ids. Models of one recipe with different
    seeds make different mistakes, so their mean is often better than the best of them. Sutskever et al., 2014,
    "Sequence to Sequence Learning with Neural Networks", table 1, have ensembles of this kind. An ensemble takes as
    much time and memory as all of its models together.

    Args:
        models: List of at least two built `EncoderDecoder` models, which are used as they are.
        **kwargs: Keras's `name`, `dtype`, `trainable`. The models compute with their own dtypes.

    Call arguments:
        inputs: A dict: `source`, int `(batch, source_len)`; `target`, int `(batch, target_len)`, shifted right: it
            starts with `bos_id`. Both are padded on the right with `pad_id`.
        training: Whether to drop.
        return_attention_scores: Whether to return the attention scores too: a list with those of each model.

    Returns:
        The logarithms of the mean probabilities, float32 `(batch, target_len, target_vocab_size)`; then the scores,
        where asked for.

    Raises:
        ValueError: If `models` is not a list of at least two different `EncoderDecoder` models, they differ in a
            vocabulary's size or in a special id, or some but not all have int8 weights.

    >>> from keras_transformer.models import Transformer
    >>> models = [Transformer(11, num_layers=1, d_model=4, num_heads=2, d_ff=8) for _ in range(2)]
    >>> Ensemble(models).generate(np.array([[5, 7, 3]]), max_length=4).tokens.shape
    TensorShape([1, 1, 4])
    """

    def __init__(self, models, **kwargs):
        super().__init__(**kwargs)
        # Token ids keep their dtype.
        self.autocast = False
        fits = isinstance(models, (list, tuple)) and len({id(model) for model in models}) == len(models) > 1
        check(
            fits and all(isinstance(model, EncoderDecoder) for model in models),
            "`models` must be a list of at least two different `EncoderDecoder` models.",
            models=models,
        )
        self.models = list(models)
        for name in SHARED:
            values = [getattr(model, name) for model in models]
            check(len(set(values)) == 1, f"`models` must all have the same `{name}`.", **{name: values})
            setattr(self, name, values[0])
        quantized = [has_int8_weights(model) for model in models]
        rule = "`models` must all have int8 weights, or none of them: quantize the ensemble as a whole."
        check(len(set(quantized)) == 1, rule, quantized=quantized)
        for name in ("max_positions", "max_source_positions"):
            limits = [getattr(model, name) for model in models]
            setattr(self, name, min((limit for limit in limits if limit is not None), default=None))
        self.built = True
        for model in self.models:
            if not all(layer.built for layer in model.layers):
                model.build_added_layers()

    @property
    def refused_formats(self):
        return {name: rule for model in self.models for name, rule in model.refused_formats.items()}

    def call(self, inputs, training=None, return_attention_scores=False):
        options = {"training": training, "return_attention_scores": return_attention_scores}
        results = [unpack(model(inputs, **options), return_attention_scores) for model in self.models]
        logits, scores, _ = zip(*results, strict=True)
        return pack(_mean_log_probs(logits), list(scores) if return_attention_scores else None)

    def input_signature(self):
        return self.models[0].input_signature()

    def start(self, source, width=1, prefix=None):
        steps, caches = [], []
        for model in self.models:
            step, cache, prompt, starts = model.start(source, width, prefix)
            step, cache = with_methods(step, cache)
            steps.append(step)
            caches.append(cache)

        def joint_step(tokens, cache, index):
            results = [step(tokens, own, index) for step, own in zip(steps, cache.caches, strict=True)]
            logits, caches = zip(*results, strict=True)
            return _mean_log_probs(logits), _JointCache(caches)

        return joint_step, _JointCache(tuple(caches)), prompt, starts

    def score_all(self, source, target):
        _, token_scores, alignments = zip(
            *(model.score_all(source, target) for model in self.models), strict=True
        )
        # Padding scores exactly 0 in each model; the mean would be 0 up to rounding.
        token_scores = ops.where(ops.equal(token_scores[0], 0.0), 0.0, _log_of_mean(token_scores))
        return Scores(ops.sum(token_scores, axis=-1), token_scores, ops.mean(ops.stack(alignments), axis=0))


def _mean_log_probs(logits):
    """Returns the logarithms of the mean of the probabilities that several logits give."""
    return _log_of_mean([ops.log_softmax(each, axis=-1) for each in logits])


def _log_of_mean(log_probs):
    """Returns `log(mean(exp(x)))` of several tensors, in their dtype."""
    stacked = ops.stack(log_probs)
    return ops.logsumexp(stacked - math.log(len(log_probs)), axis=0)
