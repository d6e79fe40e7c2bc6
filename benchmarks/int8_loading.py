"""Measures the memory that a large checkpoint takes to become an int8 servable.

usage: python benchmarks/int8_loading.py [--layers 12] [--width 896] [--vocab-size 32000]

Writes a random bfloat16 checkpoint of Llama's form in files of 64 MiB. Then four processes measure their largest
resident memory above that of the imports: one reads it as int8, one reads it as float32 and quantizes it, and two
read it as int8 and export it, with the export's check and without.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np

STEPS = {
    "read as int8": "model = from_huggingface(folder, precision='int8')",
    "read as float32, then quantize": "model = from_huggingface(folder); model.quantize('int8')",
    "read as int8, then export": """
model = from_huggingface(folder, precision='int8')
servable = TextGenerator(model, ByteTokenizer(), max_source_length=16, max_length=16)
servable.export(folder + '/export', precision='int8')""",
    "read as int8, then export without the check": """
model = from_huggingface(folder, precision='int8')
servable = TextGenerator(model, ByteTokenizer(), max_source_length=16, max_length=16)
servable.export(folder + '/unchecked', precision='int8', check=False)""",
}
CODE = r"""
import re, sys, warnings
warnings.simplefilter('ignore')
import keras, tensorflow
from keras_transformer.huggingface import from_huggingface
from keras_transformer.serving import TextGenerator
from keras_transformer.text import ByteTokenizer

def peak():  # not `ru_maxrss`, which begins with the peak of the process that started this one
    with open("/proc/self/status") as status:
        return int(re.search(r"VmHWM:\s*(\d+)", status.read())[1]) / 1024

folder = sys.argv[1]
keras.layers.Dense(4)(keras.ops.ones((2, 3)))
before = peak()
{step}
print(before, peak() - before, model.count_params())
"""


def write_checkpoint(folder, layers, width, vocab_size):
    """Writes config.json and the tensors, one file for each 64 MiB; returns their bytes."""
    from safetensors.numpy import save_file

    inner = width * 8 // 3 // 64 * 64
    config = {
        **{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": vocab_size},
        **{"hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers},
        **{"num_attention_heads": 14, "num_key_value_heads": 2, "max_position_embeddings": 2048},
        **{"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "tie_word_embeddings": False},
    }
    (folder / "config.json").write_text(json.dumps(config))
    keys = width // 14 * 2
    shapes = {
        "model.embed_tokens": (vocab_size, width),
        "lm_head": (vocab_size, width),
        "model.norm": (width,),
    }
    for i in range(layers):
        name = f"model.layers.{i}"
        shapes |= {f"{name}.input_layernorm": (width,), f"{name}.post_attention_layernorm": (width,)}
        for part, rows in (("q", width), ("k", keys), ("v", keys), ("o", width)):
            shapes[f"{name}.self_attn.{part}_proj"] = (rows, width)
        shapes |= {f"{name}.mlp.{part}_proj": (inner, width) for part in ("gate", "up")}
        shapes[f"{name}.mlp.down_proj"] = (width, inner)
    rng, shards, files = np.random.default_rng(0), [{}], {}
    for name, shape in shapes.items():
        array = (rng.standard_normal(shape, "float32") * 0.02).astype(ml_dtypes.bfloat16)
        if sum(each.nbytes for each in shards[-1].values()) + array.nbytes > 2**26:
            shards.append({})
        shards[-1][f"{name}.weight"] = array
    for i, shard in enumerate(shards):
        save_file(shard, folder / f"model-{i}.safetensors")
        files |= dict.fromkeys(shard, f"model-{i}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def main():
    """Prints a line for each way."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=896)
    parser.add_argument("--vocab-size", type=int, default=32000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        size = write_checkpoint(Path(temporary), options.layers, options.width, options.vocab_size)
        for name, step in STEPS.items():
            command = [sys.executable, "-c", CODE.format(step=step), temporary]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            before, more, parameters = done.stdout.split()[-3:]
            print(
                f"{name}: {float(more):,.0f} MiB above the {float(before):,.0f} MiB of the imports, "
                f"{int(parameters) / 1e6:,.0f} million parameters, {size / 2**20:,.0f} MiB of files",
                flush=True,
            )


if __name__ == "__main__":
    main()
