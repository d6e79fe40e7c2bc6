"""How much each token that a model reads matters for its output."""

from typing import Any, NamedTuple

import numpy as np
from keras import ops

from keras_transformer.checks import check, check_choice, check_positive
from keras_transformer.execution import native
from keras_transformer.models import ClassificationHead, EncoderDecoder, EncoderModel
from keras_transformer.models.generation import features_of, log_probs_of, rows_of

ROWS_AT_ONCE = 256

METHODS = (
    "attention",
    "mean_attention",
    "rollout",
    "leave_one_out",
    "gradient_x_input",
    "integrated_gradients",
)


class Importances(NamedTuple):
    """How much each token of a text matters.

    read: List of str, the tokens that the model reads.
    written: List of str, the tokens that a translator writes; for a classifier a list with the label.
    values: float32 NumPy `(len(written), len(read))`.

    >>> importances = Importances(["a", "dog"], ["ein", "Hund"], np.array([[0.9, 0.1], [0.2, 0.8]]))
    >>> [importances.read[i] for i in importances.values.argmax(axis=1)]
    ['a', 'dog']
    """

    read: list
    written: list
    values: Any


def explain_text(servable, text, target=None, method="leave_one_out", steps=32):
    """Computes how much each token of a text matters for the answer of a translator or a classifier.

    Args:
        servable: A `Translator` with an encoder-decoder, or a `Classifier` of single texts.
        text: str.
        target: str, the translation or the label to explain; the servable's own answer when None.
        method: One of `METHODS`, which `importances` describes.
        steps: Number of steps of "integrated_gradients".

    Returns:
        `Importances`.

    Raises:
        ValueError: If the servable is of another kind, `text` is empty, `target` is not a label of the classifier, or
            `method` is unknown.

    >>> from keras_transformer import models, serving, text
    >>> tokenizer = text.SentencePieceTokenizer.train(["a man runs", "a dog runs"] * 9, vocab_size=20)
    >>> model = models.Transformer(tokenizer.vocab_size, num_layers=1, d_model=4, num_heads=2, d_ff=8)
    >>> importances = explain_text(serving.Translator(model, tokenizer), "a dog runs", target="a man runs")
    >>> importances.values.shape == (len(importances.written), len(importances.read))
    True
    """
    check(isinstance(text, str) and text.strip(), "`text` must be a str that is not empty.", text=text)
    model, limit = servable.model, servable.max_source_length
    if isinstance(model, EncoderDecoder):
        source_tokenizer, tokenizer = servable.source_tokenizer, servable.target_tokenizer
        source = [*source_tokenizer.tokenize([text])[0].numpy()[: limit - 1], model.eos_id]
        if target is None:
            target = servable.translate([text])[0]
        written = [*tokenizer.tokenize([target])[0].numpy(), model.eos_id]
        values = importances(model, np.array([source]), np.array([written]), method, steps)[0]
        return Importances(source_tokenizer.pieces(source), tokenizer.pieces(written), values)
    if not hasattr(servable, "labels") or servable.pairs:
        raise ValueError(
            "`servable` must be a `Translator` with an `EncoderDecoder`, or a `Classifier` of single texts. "
            f"Received: {servable!r:.200}."
        )
    tokenizer, labels = servable.tokenizer, servable.labels
    read = [tokenizer.bos_id, *tokenizer.tokenize([text])[0].numpy()[: limit - 2], tokenizer.eos_id]
    if target is None:
        target = servable.classify([text])[0][0]
    check_choice(labels, target=target)
    values = importances(model, np.array([read]), np.array([labels.index(target)]), method, steps)
    return Importances(tokenizer.pieces(read), [target], values)


def importances(model, source, target, method="leave_one_out", steps=32):
    """Computes how much each token that a model reads matters for the log probability of its output.

    - "attention": the attention scores of the last layer, the mean of its heads: those of the decoder to the source,
      or in an encoder those of the first token.
    - "mean_attention": the same, the mean of all layers.
    - "rollout": the same attention, followed through the layers of the encoder (`rollout`).
    - "leave_one_out": the log probability that is lost when a token is hidden from the model. The other tokens keep
      their positions.
    - "gradient_x_input": the gradient of the log probability with respect to the token's embedding, times the embedding
      (Shrikumar et al., 2017, "Learning Important Features Through Propagating Activation Differences", section 2).
    - "integrated_gradients": the mean gradient on the way from embeddings of zeros to those of the tokens, times the
      embeddings (Sundararajan et al., 2017, "Axiomatic Attribution for Deep Networks", section 3). The sum over the
      tokens is the log probability less that of embeddings of zeros, up to the error of the steps.

    Only attention is between 0 and 1. The other values are negative where a token speaks against the output.

    Args:
        model: An `EncoderDecoder`, or an `EncoderModel` with a `ClassificationHead`.
        source: int `(batch, source_len)`, the ids to read, padded on the right. Or what another source reads, such as
            spectrograms: then only attention is computed.
        target: int `(batch, target_len)`, the ids that were written, as `score` takes them: without `bos_id`, padded on
            the right. For an `EncoderModel` the numbers of the classes, int `(batch,)`.
        method: One of the names above.
        steps: Number of steps of "integrated_gradients".

    Returns:
        float32 NumPy `(batch, target_len, source_len)`, for an `EncoderModel` `(batch, source_len)`; 0 for padding. A
        source without ids has as many places as the encoder gives states.

    Raises:
        ValueError: If the model is of another class, a shape does not fit, `method` is unknown, `steps` is not
            positive, or attention is asked of a model without attention scores.

    >>> from keras_transformer.layers import Embeddings, Encoder
    >>> encoder = Encoder(1, num_heads=2, d_ff=8)
    >>> model = EncoderModel(Embeddings(11, 4), encoder, head=ClassificationHead(2))
    >>> importances(model, np.array([[2, 5, 7, 3]]), np.array([1])).shape
    (1, 4)
    """
    writes = isinstance(model, EncoderDecoder)
    if not writes and not (isinstance(model, EncoderModel) and isinstance(model.head, ClassificationHead)):
        raise ValueError(
            "`model` must be an `EncoderDecoder`, or an `EncoderModel` with a `ClassificationHead`. "
            f"Received: {model!r:.200}."
        )
    check_choice(METHODS, method=method)
    check_positive(steps=steps)
    target = np.asarray(target, "int32")
    attends, reads_ids = "attention" in method or method == "rollout", not writes or model.reads_ids
    rule = "`method` must be one of attention, mean_attention and rollout for a source without ids."
    check(attends or reads_ids, rule, method=method)
    source = np.asarray(source, "int32") if reads_ids else features_of(source, "source")
    rows, rank = rows_of(source), 2 if writes else 1
    rule = (
        f"`source` must have shape `(batch, {'source_len' if reads_ids else '...'})`, and `target` "
        f"{'`(batch, target_len)`' if writes else '`(batch,)`'}."
    )
    fits = (
        target.ndim == rank and len(target) == rows and (not reads_ids or (source.ndim == 2 and source.size))
    )
    check(fits, rule, source=getattr(source, "shape", None), target=target.shape)
    if attends:
        values = _attention(model, source, target, method)
    else:
        compute = _left_out if method == "leave_one_out" else _gradients
        rows = zip(source[:, None], target[:, None], strict=True)
        values = np.concatenate([compute(model, *row, method, steps) for row in rows])
    if reads_ids:
        values = values * (source != model.pad_id)[:, None]
    return values * (target != model.pad_id)[..., None] if writes else values[:, 0]


def rollout(scores):
    """Follows attention through the layers of an encoder to the tokens that it reads.

    Abnar and Zuidema, 2020, "Quantifying Attention Flow in Transformers", section 3: each layer's attention is the mean
    of its heads and of the residual connection, in equal parts; the layers are multiplied.

    Args:
        scores: A list with the attention scores of each layer, float `(batch, num_heads, length, length)`, as
            `return_attention_scores=True` gives them.

    Returns:
        float NumPy `(batch, length, length)`: how much the last state of each position comes from each token. A row's
        sum is 1.

    >>> rollout([np.array([[[[0.0, 1.0], [1.0, 0.0]]]])]).tolist()  # one layer, one head
    [[[0.5, 0.5], [0.5, 0.5]]]
    """
    joint = None
    for layer in scores:
        heads = ops.convert_to_numpy(layer).mean(axis=1)
        step = 0.5 * heads + 0.5 * np.eye(heads.shape[-1])
        joint = step if joint is None else step @ joint
    return joint


def _attention(model, source, target, method):
    """Returns the attention of each output to each token, `(batch, outputs, source_len)`."""
    if isinstance(model, EncoderDecoder):
        inputs = {"source": source, "target": _shifted(model, target)}
        _, scores = model(inputs, training=False, return_attention_scores=True)
        encoder, layers = scores["encoder"], scores["cross"]
    else:
        _, encoder = model.encode(source, training=False, return_attention_scores=True)
        # The head reads the first token.
        layers = [layer[:, :, :1] for layer in encoder]
    if method == "rollout" and not encoder:
        raise ValueError("`method='rollout'` needs an encoder with attention. Received: a recurrent one.")
    means = [ops.convert_to_numpy(layer).mean(axis=1) for layer in layers]
    if method == "mean_attention":
        return np.mean(means, axis=0)
    if method == "attention":
        return means[-1]
    return means[-1] @ rollout(encoder) if isinstance(model, EncoderDecoder) else rollout(encoder)[:, :1]


def _left_out(model, source, target, method, steps):
    """Hides one token after another from the model. Returns the losses, `(1, outputs, source_len)`."""
    length = source.shape[1]
    # The last row hides no token.
    hidden = np.where(np.eye(length + 1, length, dtype=bool), model.pad_id, source)
    scores = np.concatenate(
        [ops.convert_to_numpy(_log_probs(model, rows, target)) for (rows,) in _slices(hidden)]
    )
    return (scores[-1] - scores[:-1]).T[None]


def _gradients(model, source, target, method, steps):
    """Multiplies embeddings with their gradients. Returns `(1, outputs, source_len)`."""
    embeddings = model.source if isinstance(model, EncoderDecoder) else model.embeddings
    vectors = ops.convert_to_numpy(embeddings.tokens(source))
    shares = [1.0] if method == "gradient_x_input" else (np.arange(steps) + 0.5) / steps
    outputs = target.shape[1] if target.ndim == 2 else 1
    sums = np.zeros((outputs, *vectors.shape[1:]), vectors.dtype)
    for output, share in _slices(np.tile(np.arange(outputs), len(shares)), np.repeat(shares, outputs)):

        def total(rows, output=output):
            log_probs = _log_probs(model, np.repeat(source, len(output), axis=0), target, rows)
            return ops.sum(ops.take_along_axis(log_probs, output[:, None], axis=1))

        rows = ops.convert_to_tensor(share[:, None, None].astype(vectors.dtype) * vectors)
        np.add.at(sums, output, ops.convert_to_numpy(native.gradient_of(total)(rows)))
    return (sums * vectors / len(shares)).sum(axis=-1)[None]


def _slices(*arrays):
    """Cuts arrays into parts of `ROWS_AT_ONCE` rows, so that long texts fit into memory."""
    for start in range(0, len(arrays[0]), ROWS_AT_ONCE):
        yield [array[start : start + ROWS_AT_ONCE] for array in arrays]


def _log_probs(model, source, target, vectors=None):
    """Computes the log probability of each output of one target for several sources, `(rows, outputs)`."""
    if isinstance(model, EncoderDecoder):
        target = np.repeat(target, len(source), axis=0)
        memory = model.encode(source, training=False, vectors=vectors)
        logits = model.decode(_shifted(model, target), memory, training=False)
        return log_probs_of(ops.convert_to_tensor(target), logits, model.pad_id)[0]
    states = model.encode(source, training=False, vectors=vectors)
    logits = model.read(states, training=False, padding_mask=model.padding_mask(source))
    return ops.take(ops.log_softmax(logits, axis=-1), target, axis=-1)


def _shifted(model, target):
    """Puts `bos_id` in front of each target, and drops its last token."""
    first = np.full((len(target), 1), model.bos_id, "int32")
    return np.concatenate([first, target[:, :-1]], axis=1)
