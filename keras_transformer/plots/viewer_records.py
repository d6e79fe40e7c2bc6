"""Records what a model attends to, for the pages of the viewer."""

import base64
import contextlib
from unittest import mock

import numpy as np
from keras import ops

from keras_transformer.decoding import Beam
from keras_transformer.plots.viewer_beam import record_search
from keras_transformer.plots.viewer_live import CannotRunError, check_plain

# SentencePiece's sign for a space, and the sign that people know.
BLANK, OPEN_BOX = "\u2581", "\u2423"
# A space, as tokenizers of bytes write it.
BLANK_BYTE = "<0x20>"
# Number of pixels of a picture in a page.
LARGEST_SIDE = 384


def labels_of(tokenizer, ids):
    """Returns the text of each id, with an open box for the space that starts a word."""
    return [piece.replace(BLANK, OPEN_BOX).replace(BLANK_BYTE, OPEN_BOX) for piece in tokenizer.pieces(ids)]


def record_translation(translator, text):
    """Translates a text, and records the attention of all layers and the beam search, if it is one.

    Args:
        translator: A `Translator`.
        text: str.

    Returns:
        A dict of plain values.
    """
    model, tokenizer = translator.model, translator.target_tokenizer
    start = translator.target_start
    ids = translator.source_tokenizer.tokenize([text])[0].numpy()[: translator.room]
    if not len(ids):
        raise ValueError(f"`inputs` must hold something to translate. Received: {text!r:.200}.")
    source = np.array([translator.frame.source(ids)], "int32")
    nodes = None
    if type(translator.strategy) is Beam and not start:
        hypotheses, nodes = record_search(translator, source)
        labels = labels_of(tokenizer, [node.pop("token") for node in nodes])
        nodes = [{**node, "label": label} for node, label in zip(nodes, labels, strict=True)]
    else:
        hypotheses = model.generate(
            source,
            translator.strategy,
            translator.max_length,
            constraints=translator.constraints,
            prefix=np.array([start], "int32") if start else None,
        )
    length = int(hypotheses.lengths[0, 0])
    written = ops.convert_to_numpy(hypotheses.tokens)[0, 0, :length].tolist()
    past = [model.bos_id, *written[:-1]]
    stacks = {
        "encoder": (model.encoder, "self_attention"),
        "decoder": (model.decoder, "self_attention"),
        "cross": (model.decoder, "cross_attention"),
    }
    with recorded_vectors({name: _attentions(*stack) for name, stack in stacks.items()}) as vectors:
        _, scores = model({"source": source, "target": np.array([past])}, return_attention_scores=True)
    read = labels_of(translator.source_tokenizer, source[0].tolist())
    steps = labels_of(tokenizer, written)
    groups = [
        _group("encoder", read, read, scores, vectors),
        _group("decoder", steps, labels_of(tokenizer, past), scores, vectors),
        _group("cross", steps, read, scores, vectors),
    ]
    return {
        "text": text,
        "translation": tokenizer.detokenize([written[len(start) :]])[0].numpy().decode("utf-8", "replace"),
        "score": float(hypotheses.scores[0, 0]),
        # A recurrent encoder has no attention.
        "groups": [group for group in groups if group["layers"]],
        "beam": nodes,
    }


def record_encoding(model, tokenizer, text, max_length):
    """Records the attention of an `EncoderModel` that reads a text.

    Args:
        model: An `EncoderModel`.
        tokenizer: Its tokenizer.
        text: str.
        max_length: Largest number of tokens, with those that begin and end a text.

    Returns:
        A dict of plain values.
    """
    ids = tokenizer.tokenize([text])[0].numpy()[: max_length - 2]
    token_ids = np.array([[tokenizer.bos_id, *ids, tokenizer.eos_id]], "int32")
    with recorded_vectors({"encoder": _attentions(model.encoder, "self_attention")}) as vectors:
        _, scores = model.encode({"token_ids": token_ids}, training=False, return_attention_scores=True)
    labels = labels_of(tokenizer, token_ids[0].tolist())
    return {"text": text, "groups": [_group("encoder", labels, labels, {"encoder": scores}, vectors)]}


def record_image(model, image, picture, name):
    """Records the attention of a `VisionTransformer` that reads an image.

    Args:
        model: A `VisionTransformer`.
        image: float `(height, width, channels)`, prepared as the images of the model's training.
        picture: uint8 `(height, width, channels)`, the image as people see it.
        name: What the page calls the image, str.

    Returns:
        A dict of plain values.
    """
    with recorded_vectors({"encoder": _attentions(model.encoder, "self_attention")}) as vectors:
        _, scores = model.encode(image[None], training=False, return_attention_scores=True)
    rows, columns = model.grid
    patches = [f"patch {row + 1},{column + 1}" for row in range(rows) for column in range(columns)]
    labels = patches if model.class_token is None else ["class token", *patches]
    return {
        "text": name,
        "groups": [_group("encoder", labels, labels, {"encoder": scores}, vectors)],
        "image": {"rows": rows, "columns": columns, "pixels": _pixels(picture)},
    }


def _attentions(stack, name):
    """Returns the attention layers of a stack; None for a layer without one."""
    return [getattr(layer, name, None) for layer in getattr(stack, "layers", ())]


@contextlib.contextmanager
def recorded_vectors(attentions):
    """Records the queries, keys and values of plain attention layers while a model runs.

    It notes the inputs of each `call`, so layers return nothing more, and an overridden `call` is the one recorded.

    Args:
        attentions: A dict from a group's name to the list of its layers.

    Yields:
        A dict that has, after the run, for each group whose layers all have the paper's attention, the queries, keys
        and values, a triple of float NumPy `(num_layers, length, num_heads * dim)`.
    """
    calls, vectors = {}, {}

    def recording(attention, call):
        def recorded(query, value, *args, **kwargs):
            calls[id(attention)] = query, value
            return call(query, value, *args, **kwargs)

        return recorded

    with contextlib.ExitStack() as stack:
        for layers in attentions.values():
            for attention in layers:
                with contextlib.suppress(CannotRunError):
                    check_plain(attention)
                    recorded = recording(attention, attention.call)
                    stack.enter_context(mock.patch.object(attention, "call", recorded))
        yield vectors
    for name, layers in attentions.items():
        if layers and all(id(attention) in calls for attention in layers):
            rows = [_projected(attention, *calls[id(attention)]) for attention in layers]
            vectors[name] = [np.stack(part) for part in zip(*rows, strict=True)]


def _projected(attention, query, value):
    """Returns the queries, keys and values of the first row, float NumPy `(length, num_heads * dim)` each."""
    parts = attention.query_dense(query), attention.key_dense(value), attention.value_dense(value)
    return [ops.convert_to_numpy(part)[0].reshape(part.shape[1], -1) for part in parts]


def _group(name, rows, columns, scores, vectors):
    """Describes the attention of all layers of one group."""
    weights = [ops.convert_to_numpy(layer)[0] for layer in scores[name]]
    return {
        "name": name,
        "rows": rows,
        "columns": columns,
        "layers": len(weights),
        "heads": len(weights[0]) if weights else 0,
        "weights": _base64(np.array(weights)),
        "vectors": [_base64(part) for part in vectors[name]] if name in vectors else None,
    }


def _base64(array):
    return base64.b64encode(array.astype("<f2").tobytes()).decode()


def _pixels(picture):
    """Describes uint8 `(height, width, 1 or 3)` for the page, with every n-th pixel of a large picture."""
    step = -(-max(picture.shape[:2]) // LARGEST_SIDE)
    picture = np.broadcast_to(picture, (*picture.shape[:2], 3))[::step, ::step]
    height, width, _ = picture.shape
    return {"height": height, "width": width, "rgb": base64.b64encode(picture.tobytes()).decode()}
