"""What transformers computes with our models' weights, recorded: for where PyTorch is not installed.

usage: python tests/huggingface/record.py    (needs the extra `parity`; writes recorded.json beside this file)

Each model is written with `to_huggingface`, loaded with transformers' own class and called with the same inputs.
Recorded are its versions and, for each row and position, the product of what it gives with one fixed vector.
"""

import json
import sys
import tempfile
from pathlib import Path

import keras
import numpy as np

HERE = Path(__file__).resolve().parent
RECORD = HERE / "recorded.json"
sys.path[:0] = [str(HERE), str(HERE.parent)]

import families  # noqa: E402
import test_bert  # noqa: E402
import test_vit  # noqa: E402

from keras_transformer.huggingface import to_huggingface  # noqa: E402
from keras_transformer.models import EncoderDecoder, EncoderModel, VisionTransformer  # noqa: E402

LENGTHS = (11, 7, 2, 5)
CASES = {
    **{name: lambda config=config: families.ours(config) for name, config in families.CONFIGS.items()},
    **{
        f"bert-{name}": lambda config=config: test_bert.ours(config)
        for name, config in test_bert.CONFIGS.items()
    },
    **{f"vit-{name}": lambda name=name: test_vit.ours(name) for name in test_vit.CONFIGS},
}


def inputs_of(model):
    """What ours is called with; the same for theirs; which positions are real."""
    if isinstance(model, VisionTransformer):
        images = test_vit.images(model)
        return images, {"pixel_values": images.transpose(0, 3, 1, 2)}, None
    if isinstance(model, EncoderModel):
        ids, segments, real = test_bert.rows(model)
        theirs = {"input_ids": ids, "token_type_ids": segments, "attention_mask": real.astype("int64")}
        return {"token_ids": ids, "segment_ids": segments}, theirs, real
    ids = np.random.default_rng(0).integers(2, families.EOS, (len(LENGTHS), max(LENGTHS)))
    real = np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]
    ids = np.where(real, ids, model.pad_id)
    theirs = {"input_ids": ids, "attention_mask": real.astype("int64")}
    if not isinstance(model, EncoderDecoder):
        return ids, theirs, real
    target = np.concatenate([np.full((len(ids), 1), model.bos_id), ids[::-1, :-1]], axis=1)
    return {"source": ids, "target": target}, {**theirs, "decoder_input_ids": target}, real[::-1]


def numbers_of(outputs, real):
    """A number for each row, or for each real position."""
    outputs = np.asarray(outputs)
    vector = np.random.default_rng(7).normal(size=outputs.shape[-1])
    products = outputs @ (vector / np.linalg.norm(vector))
    return products[real] if real is not None and real.shape == products.shape else products.reshape(-1)


def ours(name):
    """Our numbers for a case."""
    model = CASES[name]()
    inputs, _, real = inputs_of(model)
    return numbers_of(keras.ops.convert_to_numpy(model(inputs)), real)


def theirs(name):
    """Those of transformers."""
    import torch
    import transformers

    model = CASES[name]()
    _, inputs, real = inputs_of(model)
    with tempfile.TemporaryDirectory() as folder:
        to_huggingface(model, Path(folder) / "new")
        config = json.loads((Path(folder) / "new" / "config.json").read_text())
        kind = getattr(transformers, config["architectures"][0])
        pooling = {"add_pooling_layer": "pooler" in name} if kind.__name__ == "ViTModel" else {}
        loaded = kind.from_pretrained(Path(folder) / "new", attn_implementation="eager", **pooling).eval()
    with torch.no_grad():
        found = loaded(**{key: torch.tensor(value.copy()) for key, value in inputs.items()})
    if getattr(found, "logits", None) is not None:
        return numbers_of(found.logits.numpy(), real)
    pooled = isinstance(model, VisionTransformer) and model.pooler is not None
    return numbers_of((found.pooler_output if pooled else found.last_hidden_state).numpy(), real)


def main():
    """Records all cases, and says how far ours are from theirs."""
    import torch
    import transformers

    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    record = {"versions": versions, "numbers": {}}
    for name in CASES:
        numbers = theirs(name)
        print(
            f"{name:32} {len(numbers):4} numbers, ours differ by {np.abs(ours(name) - numbers).max():.1e} at most"
        )
        record["numbers"][name] = [round(float(number), 6) for number in numbers]
    RECORD.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
