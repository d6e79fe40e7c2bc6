"""The requests that a server answers before its first user's: tensorflow/serving, "SavedModel Warmup"."""

import functools

import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

FILE = "tf_serving_warmup_requests"
MOST_RECORDS = 990  # a server refuses a version with more than 1,000 in all


def write_warmup(folder, servable, shapes):
    """Writes `folder/tf_serving_warmup_requests`.

    Args:
        folder: The `assets.extra` of a SavedModel.
        servable: The `Servable` that is exported.
        shapes: Pairs of a batch size and a source length in tokens. Each gets a request of the first signature; the
            others, which compute with the same functions, get one each, of the first shape.
    """
    with tf.io.TFRecordWriter(str(folder / FILE)) as writer:
        for log in logs(servable.requests(shapes)):
            writer.write(log.SerializeToString())


def logs(requests):
    """The `PredictionLog`s of pairs of a signature and its inputs."""
    for signature, inputs in requests:
        request = predict_pb2.PredictRequest()
        request.model_spec.signature_name = signature
        for name, value in inputs.items():
            request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
        yield prediction_log_pb2.PredictionLog(predict_log=prediction_log_pb2.PredictLog(request=request))


def text_of(tokenizer, length):
    """A text of `length` tokens, eos included, or of as many below as a repeated word allows."""
    tokens, unit = _unit(tokenizer)
    return (unit * max(1, (length - 1) // tokens)).decode()


@functools.lru_cache(maxsize=8)
def _unit(tokenizer):
    """The shortest of `_units`: it takes a look at many pieces."""
    return min(_units(tokenizer), key=lambda unit: unit[0])


def _units(tokenizer):
    """Texts that repeat evenly, with the number of their tokens, until one has a single token."""
    for piece in tokenizer.pieces(range(4, tokenizer.vocab_size)):
        for unit in (piece.replace("\u2581", " "), " " + piece.strip("\u2581")):
            unit = unit.encode()
            once, often = (len(tokenizer.tokenize(unit * n)) for n in (1, 7))
            if unit.strip() and often == 7 * once:
                yield once, unit
                if once == 1:
                    return
    raise ValueError("`tokenizer` must have a piece that can be repeated.")
