"""BERT, GPT-2 and Llama beside the libraries that people serve them with: the same random weights, the same work.

    python benchmarks/families.py bert --rounds 5
    python benchmarks/families.py gpt2 --rounds 5
    python benchmarks/families.py llama --rounds 5

bert (T6): the last states of an encoder of BERT-base's size, 128 tokens, batches of 1 and 32, beside Hugging Face on
PyTorch, ONNX Runtime (float32, and int8 by its dynamic quantization) and OpenVINO (float32, bfloat16, and int8 by
nncf's quantization of weights and activations after training).
gpt2 (T7): 64 new tokens after a prompt of 32, greedily, by a decoder of GPT-2's size (124 M weights), batches of 1 and
16, beside CTranslate2 (float32, int8), llama.cpp (float32, Q8_0) and Hugging Face.
llama: the same by a decoder of TinyLlama's size (1.1 billion weights), batch 1, beside CTranslate2 and llama.cpp. All
rows together need about 36 GB of memory; `--rows ours-f32 ours-int8 ct2-f32 ct2-int8` needs 16.

It needs torch, transformers, onnx, onnxruntime and ctranslate2, and for the rows of families_peers.py the packages that
its docstring names. Every contestant runs in a process of its own, and they take turns within each round. The table
shows medians, and medians of the ratios within a round. A line for each row tells how far its result is from the first
row's, for the first text: the root mean square of the difference, or how many tokens are the same until one differs.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import families_peers
import numpy as np

THREADS = 2
LENGTH, PROMPT, NEW = 128, 32, 64
CALIBRATION = 64  # texts
SAMPLE = 1024  # numbers of the first text that are compared
BATCHES = {"bert": (1, 32), "gpt2": (1, 16), "llama": (1,)}
# CTranslate2 is as fast as the fastest of its settings, and which one that is differs by machine.
CT2_SETTINGS = {"onednn": {"CT2_USE_MKL": "0"}, "mkl1": {"MKL_NUM_THREADS": "1"}}
CT2 = [
    f"ct2-{kind}{setting}"
    for kind in ("f32", "int8")
    for setting in ("", *(f"-{name}" for name in CT2_SETTINGS))
]
OPENVINO = [
    f"openvino-{kind}-{hint}" for kind in ("f32", "bf16", "int8") for hint in ("latency", "throughput")
]
LLAMACPP = ("llamacpp-f32", "llamacpp-q8_0")
ROWS = {
    "bert": ("ours-f32", "ours-int8", "ours-int8-intra1", "hf-f32", "ort-f32", "ort-int8", *OPENVINO),
    "gpt2": ("ours-f32", "ours-int8", "ours-int8-intra1", *CT2, *LLAMACPP, "hf-f32"),
    "llama": ("ours-f32", "ours-int8", *CT2, *LLAMACPP),
}
SEED = 1


def write_models(model, folder, rows):
    """Writes the random checkpoint, and what the other libraries of the rows make of it."""
    import torch
    import transformers

    torch.manual_seed(SEED)
    if model == "bert":
        network = transformers.BertModel(transformers.BertConfig(), add_pooling_layer=False).eval()
        network.save_pretrained(folder / "hf")

        class States(torch.nn.Module):
            """The last states alone, of ids and their mask."""

            def __init__(self):
                super().__init__()
                self.network = network

            def forward(self, ids, mask):
                return self.network(input_ids=ids, attention_mask=mask).last_hidden_state

        ids = torch.ones((1, LENGTH), dtype=torch.int64)
        axes = {"ids": {0: "batch", 1: "length"}, "mask": {0: "batch", 1: "length"}}
        torch.onnx.export(
            States().eval(),
            (ids, ids),
            folder / "f32.onnx",
            input_names=["ids", "mask"],
            dynamic_axes=axes,
            dynamo=False,
        )
        from onnxruntime import quantization

        quantization.quantize_dynamic(folder / "f32.onnx", folder / "int8.onnx")
        if any(row.startswith("openvino-int8") for row in rows):
            texts = np.random.default_rng(SEED + 1).integers(1000, 20000, (CALIBRATION, LENGTH))
            families_peers.write_openvino(folder, texts)
        return
    if model == "gpt2":
        config, kind = transformers.GPT2Config(), transformers.GPT2LMHeadModel
    else:
        sizes = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22}
        config = transformers.LlamaConfig(**sizes, num_attention_heads=32, num_key_value_heads=4)
        kind = transformers.LlamaForCausalLM
    decoder = kind(config)
    (decoder.bfloat16() if model == "llama" else decoder).save_pretrained(folder / "hf")
    del decoder  # gigabytes
    if kinds := [row.split("-")[1] for row in LLAMACPP if row in rows]:
        families_peers.write_gguf(folder, kinds)
    import ctranslate2

    class Converter(ctranslate2.converters.TransformersConverter):
        """Converts without a tokenizer: ids are the tokens."""

        def load_tokenizer(self, *arguments, **options):
            return None

    loader = ctranslate2.converters.transformers._MODEL_LOADERS[type(config).__name__]
    words = [f"<{i}>" for i in range(config.vocab_size)]
    loader.get_vocabulary = lambda model, tokenizer: list(words)
    loader.set_vocabulary = lambda spec, tokens: spec.register_vocabulary(tokens)
    loader.set_config = lambda config, model, tokenizer: [
        setattr(config, name, words[-1]) for name in ("bos_token", "eos_token", "unk_token")
    ]
    Converter(str(folder / "hf")).convert(str(folder / "ct2"))


def inputs_of(model, batch):
    """Draws ids `(batch, length)`."""
    length = LENGTH if model == "bert" else PROMPT
    return np.random.default_rng(SEED).integers(1000, 20000, (batch, length))


def contestant(model, row, folder):
    """Returns a function of ids that does the work of one row, and gives an array to compare."""
    library, precision, *setting = row.split("-")
    if library == "ours":
        import keras
        import tensorflow as tf

        # With one thread for an operation, operations side by side use the cores.
        tf.config.threading.set_intra_op_parallelism_threads(1 if setting == ["intra1"] else THREADS)
        tf.config.threading.set_inter_op_parallelism_threads(THREADS)
        from keras_transformer.decoding import Greedy, SuppressTokens
        from keras_transformer.huggingface import from_huggingface

        if model == "bert":
            network = from_huggingface(folder / "hf")
            if precision == "int8":  # inputs in one part, as the others round them
                network.quantize("int8", config=keras.quantizers.Int8QuantizationConfig())
            return lambda ids: network.predict_on_batch(ids.astype("int32"))
        network = from_huggingface(folder / "hf", precision={"f32": "float32", "int8": "int8"}[precision])
        endless = [SuppressTokens((network.eos_id,))]
        return lambda ids: network.generate(
            ids.astype("int32"), Greedy(), NEW, jit_compile=False, constraints=endless
        ).tokens.numpy()[:, 0]
    if library == "ort":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = THREADS
        session = onnxruntime.InferenceSession(folder / f"{precision}.onnx", options)
        return lambda ids: session.run(None, {"ids": ids, "mask": np.ones_like(ids)})[0]
    if library == "openvino":
        return families_peers.openvino_states(folder, precision, *setting, THREADS)
    if library == "llamacpp":
        return families_peers.llamacpp_generator(folder, precision, THREADS, NEW)
    if library == "ct2":
        import ctranslate2

        kind = {"f32": "float32", "int8": "int8"}[precision]
        generator = ctranslate2.Generator(
            str(folder / "ct2"), compute_type=kind, intra_threads=THREADS, inter_threads=1
        )

        def generate(ids):
            results = generator.generate_batch(
                [[f"<{i}>" for i in row] for row in ids.tolist()],
                max_length=NEW,
                min_length=NEW,
                include_prompt_in_result=False,
                beam_size=1,
                sampling_topk=1,
            )
            return np.array([result.sequences_ids[0] for result in results])

        return generate
    import torch
    import transformers

    torch.set_num_threads(THREADS)
    kind = transformers.BertModel if model == "bert" else transformers.GPT2LMHeadModel
    network = kind.from_pretrained(folder / "hf").eval()

    def compute(ids):
        with torch.inference_mode():
            if model == "bert":
                return network(torch.tensor(ids)).last_hidden_state.numpy()
            found = network.generate(
                torch.tensor(ids),
                attention_mask=torch.ones_like(torch.tensor(ids)),
                max_new_tokens=NEW,
                min_new_tokens=NEW,
                do_sample=False,
                pad_token_id=0,
            )
            return found[:, PROMPT:].numpy()

    return compute


def serve(model, row, folder):
    """Runs one contestant: reads batch sizes from stdin, and answers with seconds and a digest of the result."""
    compute = contestant(model, row, folder)
    for line in sys.stdin:
        ids = inputs_of(model, int(line))
        began = time.perf_counter()
        found = compute(ids)
        seconds = time.perf_counter() - began
        first = np.asarray(found)[0].ravel()
        sample = first[:: max(1, first.size // SAMPLE)].astype(float).tolist()
        print(json.dumps({"s": seconds, "sample": sample}), flush=True)


def distance(model, sample, reference):
    """Says how far a result is from that of another row."""
    if model == "bert":
        return f"off by {np.sqrt(np.mean(np.subtract(sample, reference) ** 2)):.4f}"
    same = np.equal(sample, reference)
    return f"{NEW if same.all() else same.argmin()} of {NEW} tokens the same"


def main(arguments=None):
    """Runs all rows in turn and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=sorted(ROWS))
    parser.add_argument("--rounds", default=5, type=int)
    parser.add_argument(
        "--repeats", default=3, type=int, help="repetitions in a round, of which the fastest counts"
    )
    parser.add_argument(
        "--rows", nargs="+", metavar="ROW", help="default: all; ours-int8 has to be among them"
    )
    parser.add_argument("--batches", nargs="+", type=int, metavar="SIZE", help="default: all of the model")
    parser.add_argument(
        "--models", metavar="FOLDER", type=Path, help="keeps the models there, and reads them if it exists"
    )
    parser.add_argument("--serve", nargs=2, metavar=("ROW", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        return serve(options.model, options.serve[0], Path(options.serve[1]))
    names = options.rows or ROWS[options.model]
    if unknown := set(names) - set(ROWS[options.model]):
        parser.error(f"{options.model} has no such rows: {', '.join(sorted(unknown))}")
    if "ours-int8" not in names:
        parser.error("--rows needs ours-int8, which the others are compared with")
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.models or Path(temporary, "models")
        if not folder.exists():
            folder.mkdir()
            write_models(options.model, folder, names)
        table = {}
        for batch in options.batches or BATCHES[options.model]:
            rows, samples, processes = {row: [] for row in names}, {}, {}

            def ask(row, batch=batch, processes=processes, samples=samples):
                processes[row].stdin.write(f"{batch}\n")
                processes[row].stdin.flush()
                line = processes[row].stdout.readline()
                if not line:
                    raise SystemExit(f"the process of {row} ended; is there enough memory?")
                answer = json.loads(line)
                samples[row] = answer["sample"]
                return answer["s"]

            for row in rows:  # one after the other, since loading takes more memory than answering
                processes[row] = subprocess.Popen(
                    [sys.executable, __file__, options.model, "--serve", row, folder],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env=os.environ | CT2_SETTINGS.get(row.split("-")[-1], {}),
                )
                ask(row), ask(row)  # the first calls trace and pack
            for _ in range(options.rounds):
                for row in rows:
                    rows[row].append(min(ask(row) for _ in range(options.repeats)))
            for row, process in processes.items():
                process.stdin.close()
                process.wait()
                print(
                    f"batch {batch:2d} {row:24s} {statistics.median(rows[row]) * 1e3:9.1f} ms  {samples[row][:4]}  "
                    + distance(options.model, samples[row], samples[names[0]]),
                    flush=True,
                )
            table[batch] = rows
        print("\n| | " + " | ".join(f"batch {batch}, ms | ours-int8 faster by" for batch in table) + " |")
        print("| --- |" + " --- | --- |" * len(table))
        for row in names:
            cells = []
            for rows in table.values():
                ratios = [theirs / ours for theirs, ours in zip(rows[row], rows["ours-int8"], strict=True)]
                cells.append(f"{statistics.median(rows[row]) * 1e3:.1f} | {statistics.median(ratios):.2f}")
            print(f"| {row} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    sys.exit(main())
