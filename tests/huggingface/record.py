"""Records what transformers computes with the weights of this library's models, for tests without PyTorch.

usage: python tests/huggingface/record.py    (needs the extra `parity`; writes recorded.json beside this file)

Each model is written with `to_huggingface`, loaded with transformers' own class and called with the same inputs. The
record holds the versions of transformers and PyTorch; for each row and position the product of the output with one
fixed vector; and, for one model of each family that generates, the texts of `generate`.
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
import relatives  # noqa: E402
import test_bert  # noqa: E402
import test_encoders  # noqa: E402
import test_vit  # noqa: E402

from keras_transformer.decoding import Beam, ExcludeTokens, Greedy  # noqa: E402
from keras_transformer.huggingface import FAMILIES, to_huggingface  # noqa: E402
from keras_transformer.models import EncoderDecoder, EncoderModel, VisionTransformer  # noqa: E402

LENGTHS = (11, 7, 2, 5)
RELATIVES = {
    name: {**test_encoders.CONFIGS, **relatives.DECODERS, **relatives.ENCODER_DECODERS}[name]
    for name in (
        "bert-ForQuestionAnswering",
        "roberta-ForMaskedLM",
        "xlm-roberta-Model",
        "mpnet-ForSequenceClassification",
        "distilbert-ForQuestionAnswering",
        "electra-ForTokenClassification",
        "modernbert-mean",
        "modernbert-biases",
        "mistral",
        "qwen2-windows",
        "qwen3-biases",
        "phi3-window",
        "gemma2",
        "gemma3_text",
        "bart",
        "mbart",
        "m2m_100",
        "pegasus",
    )
}
CASES = {
    **{name: lambda config=config: families.ours(config) for name, config in RELATIVES.items()},
    **{name: lambda config=config: families.ours(config) for name, config in families.CONFIGS.items()},
    **{
        f"bert-{name}": lambda config=config: test_bert.ours(config)
        for name, config in test_bert.CONFIGS.items()
    },
    **{f"vit-{name}": lambda name=name: test_vit.ours(name) for name in test_vit.CONFIGS},
}

# With few ids, texts end. transformers gives a T5's cache as many layers as the encoder has.
FEW_IDS = {"vocab_size": 13, "bos_token_id": 12, "eos_token_id": 11}
WRITERS = {
    "gpt2": {**families.GPT2, **FEW_IDS},
    "llama": {**families.LLAMA, **FEW_IDS},
    "t5": {**families.T5, "vocab_size": 13, "num_decoder_layers": 2},
    "marian": {**families.MARIAN, "vocab_size": 13, "pad_token_id": 12, "decoder_start_token_id": 12},
}
# transformers' length penalty is our normalization "length"; `early_stopping="never"` stops as exactly as we do.
SEARCHES = {"greedy": Greedy(), "beam": Beam(4, 1.0, normalization="length")}
BEAM = {"num_beams": 4, "num_return_sequences": 2, "length_penalty": 1.0, "early_stopping": "never"}
LONGEST, CLEAR = 9, 1e-3
SEEDS = {"gpt2": 4, "llama": 4, "t5": 1, "marian": 2}  # whose texts differ, and end early in some rows


def writer(name):
    """Returns a model that generates, its input ids, and which of them are no padding."""
    model = families.randomized(name, FAMILIES[name].make_model(WRITERS[name]), SEEDS[name], scale=0.5)
    ids = np.random.default_rng(1).integers(2, 11, (len(LENGTHS), max(LENGTHS)))
    real = np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]
    return model, np.where(real, ids, model.pad_id), real


def texts_here(name, search):
    """Returns what this library generates for each row, up to its end."""
    model, ids, _ = writer(name)
    constraints = [ExcludeTokens([model.pad_id])] if name == "marian" else []
    found = model.generate(ids, SEARCHES[search], LONGEST, jit_compile=False, constraints=constraints)
    tokens, lengths = (keras.ops.convert_to_numpy(part)[:, 0] for part in found[:2])
    return [row[:length].tolist() for row, length in zip(tokens, lengths, strict=True)]


def texts_there(name, search):
    """Returns what transformers generates for each row alone; None where rounding could prefer another text."""
    import torch

    model, ids, real = writer(name)
    options = {"pad_token_id": model.pad_id, **(BEAM if search == "beam" else {})}
    if name == "marian":
        # As generation_config.json says. `forced_eos_token_id` would only change an output at its limit.
        options |= {
            "bad_words_ids": [[model.pad_id]],
            "renormalize_logits": True,
            "forced_eos_token_id": None,
        }
    with tempfile.TemporaryDirectory() as folder:
        to_huggingface(model, Path(folder) / "new")
        kind = families.auto_class(name)
        loaded = kind.from_pretrained(Path(folder) / "new", attn_implementation="eager").eval()
    texts = []
    for row, where in zip(ids, real, strict=True):
        prompt = torch.tensor(row[where][None])
        found = loaded.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=LONGEST,
            return_dict_in_generate=True,
            output_scores=True,
            **options,
        )
        text = found.sequences[0, 1 if name in families.SEQ2SEQ else prompt.shape[1] :].tolist()
        text = text[: text.index(model.eos_id) + 1] if model.eos_id in text else text[:LONGEST]
        if search == "beam":
            first, second = found.sequences_scores
        else:
            first, second = torch.stack(found.scores)[: len(text), 0].topk(2).values.T
        texts.append(text if (first - second).min() > CLEAR else None)
    return texts


def inputs_of(model, rows=test_bert.rows):
    """Returns the inputs of this library's model, those of transformers' model, and which positions are real."""
    if isinstance(model, VisionTransformer):
        images = test_vit.images(model)
        return images, {"pixel_values": images.transpose(0, 3, 1, 2)}, None
    if isinstance(model, EncoderModel):
        ids, segments, real = rows(model)
        theirs = {"input_ids": ids, "token_type_ids": segments, "attention_mask": real.astype("int64")}
        if not model.num_segments:
            del theirs["token_type_ids"]
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
    """Returns a number for each row, or for each real position."""
    outputs = np.asarray(outputs)
    vector = np.random.default_rng(7).normal(size=outputs.shape[-1])
    products = outputs @ (vector / np.linalg.norm(vector))
    return products[real] if real is not None and real.shape == products.shape else products.reshape(-1)


def rows_of(name):
    """Returns the function that makes the rows of a case, in a tuple; empty for the usual one."""
    return (test_encoders.rows,) if name in RELATIVES else ()


def ours(name):
    """Returns this library's numbers for a case."""
    model = CASES[name]()
    inputs, _, real = inputs_of(model, *rows_of(name))
    return numbers_of(keras.ops.convert_to_numpy(model(inputs)), real)


def theirs(name):
    """Returns transformers' numbers for a case."""
    import torch
    import transformers

    model = CASES[name]()
    _, inputs, real = inputs_of(model, *rows_of(name))
    family = RELATIVES[name]["model_type"] if name in RELATIVES else None
    with tempfile.TemporaryDirectory() as folder:
        to_huggingface(model, Path(folder) / "new", family=family)
        config = json.loads((Path(folder) / "new" / "config.json").read_text())
        kind = getattr(transformers, config["architectures"][0])
        pooling = {"add_pooling_layer": "pooler" in name} if kind.__name__ == "ViTModel" else {}
        loaded = kind.from_pretrained(Path(folder) / "new", attn_implementation="eager", **pooling).eval()
    with torch.no_grad():
        found = loaded(**{key: torch.tensor(value.copy()) for key, value in inputs.items()})
    if "start_logits" in found:
        return numbers_of(np.stack([found.start_logits.numpy(), found.end_logits.numpy()], axis=-1), real)
    if getattr(found, "logits", None) is not None:
        return numbers_of(found.logits.numpy(), real)
    pooled = isinstance(model, VisionTransformer) and model.pooler is not None
    return numbers_of((found.pooler_output if pooled else found.last_hidden_state).numpy(), real)


def main():
    """Records all cases, and prints the differences between this library and transformers."""
    import torch
    import transformers

    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    record = {"versions": versions, "numbers": {}}
    for name in CASES:
        numbers = theirs(name)
        print(
            f"{name:32} {len(numbers):4} numbers, differences of {np.abs(ours(name) - numbers).max():.1e} at most"
        )
        record["numbers"][name] = [round(float(number), 6) for number in numbers]
    record["texts"] = {name: {search: texts_there(name, search) for search in SEARCHES} for name in WRITERS}
    for name, found in record["texts"].items():
        print(name, found, {search: texts_here(name, search) == found[search] for search in SEARCHES})
    RECORD.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
