"""Warm-up requests, which a server answers before it serves a version (TensorFlow Serving, "SavedModel Warmup")."""

import functools

import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

FILE = "tf_serving_warmup_requests"
# A server refuses a version with more than 1,000.
MAX_REQUESTS = 990


def write_warmup(folder, requests):
    """Writes the warm-up requests of an export, `folder/tf_serving_warmup_requests`.

    Args:
        folder: Path of the folder `assets.extra` of a SavedModel.
        requests: An iterable of pairs, as `Servable.warmup_requests` yields them: a signature's name, and a dict of its
            inputs.
    """
    with tf.io.TFRecordWriter(str(folder / FILE)) as writer:
        for signature, inputs in requests:
            request = predict_pb2.PredictRequest()
            request.model_spec.signature_name = signature
            for name, value in inputs.items():
                request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
            log = prediction_log_pb2.PredictLog(request=request)
            writer.write(prediction_log_pb2.PredictionLog(predict_log=log).SerializeToString())


def first_warmup_request(folder):
    """Reads the first warm-up request of an export.

    Args:
        folder: Path of the folder `assets.extra` of a SavedModel.

    Returns:
        A pair: a signature's name, and a dict of its inputs, NumPy arrays; None if the export has no warm-up request.

    Raises:
        ValueError: If the file is damaged.
    """
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        record = next(iter(tf.data.TFRecordDataset(str(path)))).numpy()
        request = prediction_log_pb2.PredictionLog.FromString(record).predict_log.request
        inputs = {name: tf.make_ndarray(value) for name, value in request.inputs.items()}
    except (StopIteration, tf.errors.OpError, DecodeError, TypeError, ValueError) as error:
        raise ValueError(f"{path} must hold warm-up requests. Received: {error!r:.200}.") from error
    return request.model_spec.signature_name, inputs


def text_of_length(tokenizer, length):
    """Makes a text of a certain length, by repeating a word.

    Args:
        tokenizer: From `keras_transformer.text`.
        length: Number of tokens, eos included.

    Returns:
        A str of at most `length` tokens, and as close to it as the word allows.

    Raises:
        ValueError: If the tokenizer has no piece that can be repeated.
    """
    tokens, word = _shortest_word(tokenizer)
    return (word * max(1, (length - 1) // tokens)).decode()


# It looks at many pieces.
@functools.lru_cache(maxsize=8)
def _shortest_word(tokenizer):
    """Returns the number of tokens and the bytes of the repeatable word with the fewest tokens."""
    return min(_repeatable_words(tokenizer), key=lambda pair: pair[0])


def _repeatable_words(tokenizer):
    """Yields pairs of a number of tokens and a word, bytes; n words have n times as many tokens. Ends at one token."""
    for piece in tokenizer.pieces(range(4, tokenizer.vocab_size)):
        for word in (piece.replace("\u2581", " "), " " + piece.strip("\u2581")):
            word = word.encode()
            once, seven_times = (len(tokenizer.tokenize(word * n)) for n in (1, 7))
            if word.strip() and seven_times == 7 * once:
                yield once, word
                if once == 1:
                    return
    raise ValueError("`tokenizer` must have a piece that can be repeated.")
