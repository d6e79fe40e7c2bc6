"""Does the parts of serving.py that need TensorFlow's Python, in a process of its own.

usage: serving_python.py translations RUN EXPORT  < sentences
       serving_python.py records EXPORT

Input and output are JSON. `translations` prints the translations by `Translator.translate`, with the search of the
export. `records` prints the warm-up requests of the export, each as a signature's name and its inputs.
"""

import json
import sys
from pathlib import Path


def translations(run, export):
    """Translates the sentences of the standard input as an export of the run would."""
    from keras_transformer.serving import Translator

    made = json.loads((Path(export) / "assets.extra" / "export.json").read_text())
    translator = Translator.load(run).changed(**Translator.arguments_from(made, export))
    return translator.translate(json.load(sys.stdin), jit_compile=made["xla"])


def records(export):
    """Reads the requests of `assets.extra/tf_serving_warmup_requests`."""
    import tensorflow as tf
    from tensorflow_serving.apis import prediction_log_pb2

    path = Path(export) / "assets.extra" / "tf_serving_warmup_requests"
    found = []
    for record in tf.data.TFRecordDataset(str(path)):
        request = prediction_log_pb2.PredictionLog.FromString(record.numpy()).predict_log.request
        inputs = {name: plain(tf.make_ndarray(value).tolist()) for name, value in request.inputs.items()}
        found.append([request.model_spec.signature_name, inputs])
    return found


def plain(x):
    """Converts a nested list with bytes to one with str, for JSON."""
    if isinstance(x, list):
        return [plain(each) for each in x]
    return x.decode() if isinstance(x, bytes) else x


if __name__ == "__main__":
    print(json.dumps({"translations": translations, "records": records}[sys.argv[1]](*sys.argv[2:])))
