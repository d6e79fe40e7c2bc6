"""LoRA on a language model, here and with PEFT: the same weights, batches and updates; losses, speed and memory.

    pip install torch transformers peft
    python benchmarks/lora_peft.py path/to/SmolLM2-135M-Instruct chats.jsonl --steps 10

Each side runs in a process of its own. The second begins with the adapters that the first one drew. Positions a second
of the CPU leave out the first step, which traces. `rounds` repeats both in turns, and the medians count.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RANK, RATE, LENGTH, BATCH_SIZE = 8, 2e-4, 64, 8


def peak_memory():
    """The largest memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def batches_of(folder, chats, steps):
    """The first batches of the chats, padded: lists of ids, segments and targets."""
    import keras_transformer as kt
    from keras_transformer.huggingface import chat_template_from_huggingface, tokenizers_from_huggingface

    (tokenizer,) = tokenizers_from_huggingface(folder)
    template = chat_template_from_huggingface(folder)
    rows = kt.data.Chats(
        kt.data.read_chats(chats), template, tokenizer, LENGTH, BATCH_SIZE, packed=False, pad_id=2
    )
    return [(x["token_ids"], x["segment_ids"], y) for x, y in rows.dataset().take(steps).as_numpy_iterator()]


def ours(folder, chats, steps, work):
    """Trains with this library."""
    import keras
    import numpy as np
    import tensorflow as tf

    import keras_transformer as kt
    from keras_transformer.huggingface import from_huggingface, to_huggingface

    keras.utils.set_random_seed(1)
    batches, model = batches_of(folder, chats, steps), from_huggingface(folder)
    kt.training.add_adapters(model, RANK, targets=["query", "value"], alpha=2 * RANK)
    np.savez(work / "batches", *[each for batch in batches for each in batch])
    to_huggingface(model, work / "begin", adapter=folder)
    # Keras and PyTorch add epsilon before and after the correction of the bias: it is too small to count.
    optimizer = kt.training.AdamW(RATE, weight_decay=0.0, epsilon=1e-12)
    model.compile(optimizer, kt.MaskedCrossentropy(pad_id=-100))
    losses, seconds = [], []
    for token_ids, segment_ids, targets in batches:
        start = time.process_time()
        x = {"token_ids": tf.constant(token_ids), "segment_ids": tf.constant(segment_ids)}
        losses.append(float(model.train_on_batch(x, targets)))
        # Each call returns the mean loss since the first one.
        model.reset_metrics()
        seconds.append(time.process_time() - start)
    trained, peak = sum(int(np.prod(weight.shape)) for weight in model.trainable_weights), peak_memory()
    to_huggingface(model, work / "adapter", adapter=folder)
    to_huggingface(model, work / "merged")
    inputs = {"token_ids": batches[0][0], "segment_ids": batches[0][1]}
    np.save(work / "logits", keras.ops.convert_to_numpy(model(inputs))[batches[0][1] > 0])
    return losses, seconds, trained, peak


def theirs(folder, chats, steps, work):
    """Trains with PEFT, from the same adapters."""
    import numpy as np
    import peft
    import torch
    from transformers import AutoModelForCausalLM

    stored = list(np.load(work / "batches.npz").values())
    batches = [[torch.tensor(each).long() for each in stored[i : i + 3]] for i in range(0, len(stored), 3)]
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model = peft.PeftModel.from_pretrained(base, work / "begin", is_trainable=True).train()
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, RATE, weight_decay=0.0, eps=1e-12)
    losses, seconds = [], []
    for token_ids, segment_ids, targets in batches:
        start = time.process_time()
        logits = model(input_ids=token_ids, attention_mask=(segment_ids > 0).long()).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
        seconds.append(time.process_time() - start)
    return losses, seconds, sum(weight.numel() for weight in weights), peak_memory()


def check(folder, chats, steps, work):
    """The largest differences of the logits of the written folders in transformers and PEFT from those here."""
    import numpy as np
    import peft
    import torch
    from transformers import AutoModelForCausalLM

    stored = np.load(work / "batches.npz")
    token_ids, segment_ids = (torch.tensor(stored[f"arr_{i}"]).long() for i in (0, 1))
    differences = []
    for name in ("merged", "adapter"):
        model = AutoModelForCausalLM.from_pretrained(work / name if name == "merged" else folder)
        if name == "adapter":
            model = peft.PeftModel.from_pretrained(model, work / name)
        with torch.no_grad():
            logits = model.eval()(input_ids=token_ids, attention_mask=(segment_ids > 0).long()).logits
        differences.append(
            float(np.abs(logits.numpy()[segment_ids > 0] - np.load(work / "logits.npy")).max())
        )
    return differences, [], 0, 0


SIDES = {"ours": ours, "theirs": theirs, "check": check}


def main():
    """Runs the sides in turns, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("chats")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        side = SIDES[options.side]
        values, seconds, trained, peak = side(options.folder, options.chats, options.steps, options.work)
        print(json.dumps({"values": values, "seconds": seconds, "trained": trained, "peak": peak}))
        return
    found = {side: [] for side in SIDES}
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as work:
            for side in SIDES:
                command = [
                    sys.executable,
                    __file__,
                    options.folder,
                    options.chats,
                    "--steps",
                    str(options.steps),
                ]
                environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
                done = subprocess.run(
                    [*command, "--side", side, "--work", work],
                    env=environment,
                    stdout=subprocess.PIPE,
                    check=True,
                )
                found[side].append(json.loads(done.stdout.splitlines()[-1]))
    for side in ("ours", "theirs"):
        speeds = [
            BATCH_SIZE * LENGTH * (options.steps - 1) / sum(each["seconds"][1:]) for each in found[side]
        ]
        first, peak = (
            statistics.median(each)
            for each in zip(*((r["seconds"][0], r["peak"]) for r in found[side]), strict=True)
        )
        print(
            f"{side:7} {found[side][0]['trained']:,} numbers trained; {statistics.median(speeds):.0f} positions a CPU "
            f"second; first step {first:.1f} CPU s; peak {peak:,.0f} MB"
        )
    losses = zip(found["ours"][0]["values"], found["theirs"][0]["values"], strict=True)
    print(
        "largest difference of a step's loss:", max(abs(a - b) for a, b in losses), found["ours"][0]["values"]
    )
    print("largest difference of logits in transformers, merged and PEFT:", found["check"][0]["values"])


if __name__ == "__main__":
    main()
