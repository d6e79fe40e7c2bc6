"""How long CTranslate2 and ONNX Runtime take from an empty process to a first answer, beside a server of an export.

    python benchmarks/cold_start.py FOLDER --precision int8
    python benchmarks/cold_start_peers.py FOLDER --precision int8

Both libraries get the same random `base` model (Marian of transformers). ONNX Runtime has no search for it, so its
graphs are the encoder with the keys and values of its output, and one step of the decoder with its cache; a loop in
Python searches. One sentence of 20 tokens is searched greedily until it has 64, without a tokenizer. Our row is the
export that `cold_start.py` left in FOLDER, other random weights of the same sizes, in the server of the tests: its
first request holds a text, and the answer has 64 tokens, too.

Each row is CPU seconds and seconds. Those of the import count from the start of Python, those of "load" of our row from
the start of the server. All have one thread: threads that wait for each other take CPU seconds, the more the busier the
machine is. The libraries take turns in each round. The script stops if CTranslate2 and ONNX Runtime find different
tokens in float32. It needs torch, transformers, ctranslate2, onnx, onnxruntime and a C++ compiler.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import cold_start

LAYERS, HEADS, WIDTH, VOCAB = 6, 8, 512, cold_start.VOCAB
SOURCE, TARGET = 20, cold_start.MAX_LENGTH
PEERS = ("ctranslate2", "onnxruntime")


def main():
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="that `cold_start.py` wrote")
    parser.add_argument("--precision", default="float32", choices=("float32", "int8"))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--work", nargs=2, metavar=("LIBRARY", "MODELS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        library, models = options.work
        return write_models(Path(models)) if library == "write" else in_peer(library, Path(models), options)
    with tempfile.TemporaryDirectory() as models:
        sys.path.insert(0, str(cold_start.ROOT / "tests" / "serving"))
        import batching

        program, found, answers = batching.build(models), {}, {}
        command = [sys.executable, __file__, str(options.folder), "--precision", options.precision, "--work"]
        subprocess.run([*command, "write", models], check=True)
        export = options.folder / f"here-{options.precision}-0"
        server = [sys.executable, cold_start.__file__, str(export), "--work", "server", "--threads", "1"]
        path = os.pathsep.join([str(cold_start.ROOT), str(cold_start.ROOT / "tests" / "serving")])
        environment = {**os.environ, "PYTHONPATH": path, "BATCHING_SERVER": str(program)}
        for _ in range(options.rounds):
            for library in (*PEERS, "ours"):
                lines = subprocess.run(
                    server if library == "ours" else [*command, library, models],
                    env=environment,
                    stdout=subprocess.PIPE,
                    text=True,
                    check=True,
                )
                for line in lines.stdout.splitlines():
                    row, *seconds = line.split("\t")
                    if row == "tokens":
                        answers[library] = seconds
                    elif seconds:
                        found.setdefault(f"{library}, {row}", []).append(tuple(map(float, seconds)))
    if options.precision == "float32" and answers[PEERS[0]] != answers[PEERS[1]]:
        raise SystemExit(f"the answers differ: {answers}")
    print("| row | CPU s / s |\n| --- | --- |")
    for row, samples in found.items():
        cpu, wall = (statistics.median(each) for each in zip(*samples, strict=True))
        print(f"| {row} | {cpu:.2f} / {wall:.2f} |")


def in_peer(library, models, options):
    """Imports a library, loads the model and answers once. Prints a row for each, and the tokens of the answer."""
    clock = cold_start.Clock(cold_start.own_cpu)
    clock.last = 0.0, clock.last[1]  # the start of Python is in the first row
    translate = {"ctranslate2": ctranslate2_of, "onnxruntime": onnxruntime_of}[library](
        models, options.precision, clock
    )
    tokens = translate(list(range(4, 4 + SOURCE)))
    clock.row("first answer")
    translate(list(range(4, 4 + SOURCE)))
    clock.row("the same answer again")
    print("tokens", *tokens, sep="\t")


def ctranslate2_of(models, precision, clock):
    """Returns a function of source ids that gives target ids."""
    import ctranslate2

    clock.row("import")
    translator = ctranslate2.Translator(
        str(models / "ct2"), compute_type=precision, inter_threads=1, intra_threads=1
    )
    clock.row("load")
    options = {"min_decoding_length": TARGET, "max_decoding_length": TARGET, "disable_unk": True}

    def translate(ids):
        (found,) = translator.translate_batch([[*(f"t{i}" for i in ids), "</s>"]], beam_size=1, **options)
        return [word[1:] for word in found.hypotheses[0]]

    return translate


def onnxruntime_of(models, precision, clock):
    """Returns a function of source ids that gives target ids."""
    import numpy as np
    import onnxruntime

    clock.row("import")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    encoder, step = (
        onnxruntime.InferenceSession(models / f"{name}-{precision}.onnx", options)
        for name in ("encoder", "step")
    )
    clock.row("load")

    def translate(ids):
        # As in CTranslate2 the source ends with eos. The search begins with the padding token, whose vector is 0.
        memory = encoder.run(None, {"ids": np.array([[*ids, 0]])})
        cache = [np.zeros((1, HEADS, 0, WIDTH // HEADS), "float32")] * (2 * LAYERS)
        token, tokens = np.array([VOCAB - 1]), []
        names = [each.name for each in step.get_inputs()]
        for index in range(TARGET):
            values = [token, np.array([index]), *memory, *cache]
            token, *cache = step.run(None, dict(zip(names, values, strict=True)))
            tokens.append(str(token[0]))
        return tokens

    return translate


def write_models(folder):
    """Writes the model for both libraries: one with random weights."""
    import torch
    import transformers
    from ctranslate2.converters.transformers import MarianMTLoader
    from onnxruntime import quantization

    torch.manual_seed(0)
    sizes = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (("layers", LAYERS), ("attention_heads", HEADS), ("ffn_dim", 4 * WIDTH))
    }
    config = transformers.MarianConfig(
        vocab_size=VOCAB, d_model=WIDTH, **sizes, activation_function="relu", scale_embedding=True,
        max_position_embeddings=2 * TARGET, pad_token_id=VOCAB - 1, eos_token_id=0, forced_eos_token_id=None,
        decoder_start_token_id=VOCAB - 1,
    )  # fmt: skip
    network = transformers.MarianMTModel(config).eval()
    words = [
        "</s>",
        "<unk>",
        *(f"t{i}" for i in range(2, VOCAB - 1)),
    ]  # a search begins with zeros, not with padding
    loader = MarianMTLoader()
    tokenizer = argparse.Namespace(unk_token="<unk>", eos_token="</s>")
    spec = loader.get_model_spec(network)
    loader.set_config(spec.config, network, tokenizer)
    loader.set_vocabulary(spec, words)
    spec.validate()
    spec.optimize()
    (folder / "ct2").mkdir()
    spec.save(str(folder / "ct2"))

    layers, positions = network.model.decoder.layers, network.model.decoder.embed_positions.weight

    def heads(x):
        return x.reshape(1, -1, HEADS, WIDTH // HEADS).transpose(1, 2)

    def attend(attention, x, key, value):
        scores = heads(attention.q_proj(x)) @ key.transpose(2, 3) * (WIDTH // HEADS) ** -0.5
        return attention.out_proj((scores.softmax(-1) @ value).transpose(1, 2).reshape(1, 1, WIDTH))

    class Encoder(torch.nn.Module):
        """Of ids `(1, source_len)` the keys and values for each layer of the decoder."""

        def __init__(self):
            super().__init__()
            self.network = network

        def forward(self, ids):
            memory = network.model.encoder(input_ids=ids).last_hidden_state
            projections = [(layer.encoder_attn.k_proj, layer.encoder_attn.v_proj) for layer in layers]
            return [heads(projection(memory)) for pair in projections for projection in pair]

    class Step(torch.nn.Module):
        """Of the last token `(1,)`, its position, the keys and values of the encoder and the cache: the next token."""

        def __init__(self):
            super().__init__()
            self.network = network

        def forward(self, token, index, *states):
            memory, cache, written = states[: 2 * LAYERS], states[2 * LAYERS :], []
            x = (network.model.shared(token) * WIDTH**0.5 + positions[index])[:, None]
            for i, layer in enumerate(layers):
                own = layer.self_attn
                key = torch.cat([cache[2 * i], heads(own.k_proj(x))], 2)
                value = torch.cat([cache[2 * i + 1], heads(own.v_proj(x))], 2)
                written += [key, value]
                x = layer.self_attn_layer_norm(x + attend(own, x, key, value))
                x = layer.encoder_attn_layer_norm(
                    x + attend(layer.encoder_attn, x, memory[2 * i], memory[2 * i + 1])
                )
                x = layer.final_layer_norm(x + layer.fc2(torch.relu(layer.fc1(x))))
            logits = (network.lm_head(x) + network.final_logits_bias)[:, -1]
            return logits[:, 2 : VOCAB - 1].argmax(-1) + 2, *written  # neither end, unknown nor padding

    ids = torch.arange(3, 3 + SOURCE)[None]
    memory, cache = Encoder()(ids), [torch.zeros(1, HEADS, 3, WIDTH // HEADS)] * (2 * LAYERS)
    numbers = range(2 * LAYERS)
    for name, module, inputs, dynamic in (
        ("encoder", Encoder(), {"ids": ids}, {"ids": {1: "source"}}),
        (
            "step",
            Step(),
            {
                **{"token": ids[0, :1], "index": torch.tensor([3])},
                **{f"memory{i}": memory[i] for i in numbers},
                **{f"cache{i}": cache[i] for i in numbers},
            },
            {
                **{f"memory{i}": {2: "source"} for i in numbers},
                **{f"cache{i}": {2: "target"} for i in numbers},
            },
        ),
    ):
        path = folder / f"{name}-float32.onnx"
        torch.onnx.export(
            module.eval(),
            tuple(inputs.values()),
            path,
            input_names=list(inputs),
            dynamic_axes=dynamic,
            dynamo=False,
        )
        quantization.quantize_dynamic(path, folder / f"{name}-int8.onnx")


if __name__ == "__main__":
    main()
