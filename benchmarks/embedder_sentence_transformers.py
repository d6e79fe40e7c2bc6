"""An embedder tuned here and with sentence-transformers: losses on the same batches, and the vectors of the folder.

    pip install torch transformers sentence-transformers
    python benchmarks/embedder_sentence_transformers.py path/to/all-MiniLM-L6-v2 pairs.csv --epochs 1

The table has the columns `text` and `match`. Each side runs in a process of its own, without dropout, which would draw
other numbers. Then the folder that was written here is loaded by sentence-transformers.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

RATE, BATCH_SIZE = 2e-5, 32
# Keras and PyTorch add epsilon before and after the correction of the bias: it is too small to count.
EPSILON = 1e-12


def ours(folder, pairs, epochs, work):
    """Tunes with this library, and writes the batches, the folder and the vectors of the texts."""
    import keras
    import numpy as np

    import keras_transformer as kt
    from keras_transformer.huggingface import to_huggingface
    from keras_transformer.huggingface.reading import embedder_arguments
    from keras_transformer.runs.tuning_tasks import task_of
    from keras_transformer.serving import Embedder

    keras.utils.set_random_seed(1)
    task = task_of(folder, kt.runs.TuningRecipe(batch_size=BATCH_SIZE), pairs)
    rows = task.read(pairs)
    model = task.make_model(rows)
    batches = task.batches(model, rows)
    loss, _ = task.loss(model)
    model.compile(kt.training.AdamW(RATE, weight_decay=0.0, epsilon=EPSILON), loss)
    losses, written = [], []
    for x, y in batches.dataset(epochs=epochs):
        written.append(np.asarray(x["token_ids"]))
        losses.append(float(model.train_on_batch(x, y)))
        # Each call returns the mean loss since the first one.
        model.reset_metrics()
    np.savez(work / "batches", *written)
    to_huggingface(task.inner(model), work / "tuned", tokenizers=(task.tokenizer,))
    texts = [text for row in rows for text in row]
    embedder = Embedder(model.encoder, task.tokenizer, **embedder_arguments(folder, model.encoder))
    np.save(work / "vectors", np.stack(embedder.embed(texts)))
    (work / "texts.json").write_text(json.dumps(texts))
    return losses


def theirs(folder, pairs, epochs, work):
    """Tunes with sentence-transformers on the batches of the first side."""
    import numpy as np
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.losses import MultipleNegativesRankingLoss

    model = SentenceTransformer(str(folder), device="cpu").train()
    loss_of = MultipleNegativesRankingLoss(model, scale=20.0)
    optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=0.0, eps=EPSILON)
    losses = []
    for batch in np.load(work / "batches.npz").values():
        parts = [torch.tensor(batch[:, i]).long() for i in range(batch.shape[1])]
        features = [
            {"input_ids": ids, "attention_mask": (ids != 0).long(), "token_type_ids": torch.zeros_like(ids)}
            for ids in parts
        ]
        loss = loss_of(features, None)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def check(folder, pairs, epochs, work):
    """The largest difference of a number of the vectors that sentence-transformers makes with the written folder."""
    import numpy as np
    from sentence_transformers import SentenceTransformer

    texts = json.loads((work / "texts.json").read_text())
    vectors = SentenceTransformer(str(work / "tuned"), device="cpu").encode(texts)
    return [float(np.abs(vectors - np.load(work / "vectors.npy")).max())]


SIDES = {"ours": ours, "theirs": theirs, "check": check}


def main():
    """Runs the sides one after the other, and prints the largest differences."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("pairs")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(SIDES[options.side](options.folder, options.pairs, options.epochs, options.work)))
        return
    found = {}
    with tempfile.TemporaryDirectory() as work:
        still = Path(work) / "still"
        shutil.copytree(options.folder, still)
        config = json.loads((still / "config.json").read_text())
        config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        (still / "config.json").write_text(json.dumps(config))
        for side in SIDES:
            command = [sys.executable, __file__, str(still), options.pairs, "--epochs", str(options.epochs)]
            done = subprocess.run(
                [*command, "--side", side, "--work", work],
                env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
                stdout=subprocess.PIPE,
                check=True,
            )
            found[side] = json.loads(done.stdout.splitlines()[-1])
    losses = found["ours"], found["theirs"]
    difference = max(abs(one - other) for one, other in zip(*losses, strict=True))
    print(
        f"{len(losses[0])} steps of {BATCH_SIZE} pairs; loss {losses[0][0]:.4f} at first, {losses[0][-1]:.4f} at last"
    )
    print(f"largest difference of a step's loss: {difference:.1e}")
    print(f"largest difference of a number of the vectors in sentence-transformers: {found['check'][0]:.1e}")


if __name__ == "__main__":
    main()
