"""The row of an export in the benchmark harness (see README.md): signature `tokens` in TensorFlow's C++ runtime.

usage: peer_export.py small|base T2|T3|T4a|T4b --variant portable|int8|xla
       peer_export.py CONFIG TASK --variant VARIANT --write FOLDER

The timed process loads neither TensorFlow's Python nor this library. Another process, started with `--write`, makes the
export. Sources, weights and so the results are those of `peer_keras_transformer.py`.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.environ["BENCH_DIR"])
import common
import cxx

SIGNATURE = "tokens"


def build(config, task, variant):
    """Returns the function that runs one repetition of a task, and facts to print."""
    start = time.perf_counter()
    sizes = common.TASKS[task]
    source = common.decode_data(config, task)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "export")
        command = [sys.executable, __file__, config["name"], task, "--variant", variant, "--write", path]
        subprocess.run(command, check=True)
        version = os.path.join(path, "1")
        runtime, signature = cxx.load(version, SIGNATURE, xla=variant == "xla")
    info = {"peer": "the export in the C++ runtime", "import_s": round(time.perf_counter() - start, 2)}

    def repetition():
        _, found = runtime.run(signature, {"source": source})
        assert {n for row in found["lengths"] for n in row} == {sizes["new"]}, found["lengths"]
        info["check"] = found["tokens"][0][0][:8]
        return sizes["batch"] * sizes["new"]

    return repetition, info


def write(config, task, variant, folder):
    """Exports the model of `peer_keras_transformer.py`. The tokenizer does not matter: inputs and outputs are ids."""
    import keras
    import peer_keras_transformer as own

    from keras_transformer.decoding import Beam, Greedy, MinLength
    from keras_transformer.serving import Translator
    from keras_transformer.text import ByteTokenizer

    sizes = common.TASKS[task]
    keras.utils.set_random_seed(0)  # as the row of `generate` does
    model, tokenizer = own.transformer(common.CONFIGS[config], "float32"), ByteTokenizer()
    model.bos_id, model.eos_id = tokenizer.bos_id, tokenizer.eos_id  # a translator refuses other ones
    translator = Translator(
        model,
        tokenizer,
        strategy=Greedy() if sizes["beam"] == 1 else Beam(width=sizes["beam"]),
        max_source_length=sizes["src"],
        max_length=sizes["new"],
        constraints=[MinLength(sizes["new"])],
    )
    xla = variant == "xla"
    lengths = {"source_lengths": [sizes["src"]]} if xla else {}
    precision = "int8" if variant == "int8" else "float32"
    batch_sizes = [sizes["batch"]]
    translator.export(folder, xla=xla, precision=precision, warmup=False, batch_sizes=batch_sizes, **lengths)


if __name__ == "__main__":
    if "--write" in sys.argv:
        parser = argparse.ArgumentParser()
        for name in ("config", "task", "--variant", "--write"):
            parser.add_argument(name)
        options = parser.parse_args()
        write(options.config, options.task, options.variant, options.write)
    else:
        common.main(build)
