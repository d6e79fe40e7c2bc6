"""Records what transformers computes with the weights of this library's models, for tests without PyTorch.

usage: python tests/huggingface/record.py [case ...]    (needs the extra `parity`; writes recorded.json beside it)

Each model is written with `to_huggingface`, loaded with transformers' own class and called with the same inputs. The
record holds the versions of transformers and PyTorch; for each row and position the product of the output with one
fixed vector; and, for one model of each family that generates, the texts of `generate`. Where cases are
named, the rest stays as it is.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
RECORD = HERE / "recorded.json"
sys.path[:0] = [str(HERE), str(HERE.parent)]

import families  # noqa: E402

from keras_transformer.decoding import Beam, ExcludeTokens, Greedy  # noqa: E402
from keras_transformer.huggingface import FAMILIES, to_huggingface  # noqa: E402

RELATIVES = (
    *("bert-ForQuestionAnswering", "roberta-ForMaskedLM", "xlm-roberta-Model", "mpnet-ForSequenceClassification"),
    *("distilbert-ForQuestionAnswering", "electra-ForTokenClassification", "modernbert-mean", "modernbert-biases"),
    *("camembert-ForMaskedLM", "data2vec-text-Model", "ernie-ForSequenceClassification", "ministral"),
    *("mistral", "qwen2-windows", "qwen3-biases", "phi3-window", "gemma2", "gemma3_text", "smollm3"),
    *("olmo2", "gemma"),
    *("bart", "mbart", "m2m_100", "pegasus", "mt5", "umt5", "whisper"),
)  # fmt: skip
CASES = (*RELATIVES, *families.FIRST, *families.FIRST_ENCODERS)

# With few ids, texts end. transformers gives a T5's cache as many layers as the encoder has.
FEW_IDS = {"vocab_size": 13, "bos_token_id": 12, "eos_token_id": 11}
WRITERS = {
    "gpt2": {**families.GPT2, **FEW_IDS},
    "llama": {**families.LLAMA, **FEW_IDS},
    "t5": {**families.T5, "vocab_size": 13, "num_decoder_layers": 2},
    "marian": {**families.MARIAN, "vocab_size": 13, "pad_token_id": 12, "decoder_start_token_id": 12},
}
# transformers' length penalty is our normalization "length"; `early_stopping="never"` stops as exactly as we do.
BEAM = {"num_beams": 4, "num_return_sequences": 2, "length_penalty": 1.0, "early_stopping": "never"}
SEARCHES = {"greedy": (Greedy(), {}), "beam": (Beam(4, 1.0, normalization="length"), BEAM)}
# As Marian's generation_config.json says. `forced_eos_token_id` would only change an output at its limit.
WITHOUT_PADDING = {"renormalize_logits": True, "forced_eos_token_id": None}
LONGEST, CLEAR = 9, 1e-3
SEEDS = {"gpt2": 4, "llama": 4, "t5": 1, "marian": 2}  # whose texts differ, and end early in some rows


def writer(name):
    """Returns a model that generates, its input ids, and which of them are no padding."""
    model = families.randomized(name, FAMILIES[name].make_model(WRITERS[name]), SEEDS[name], scale=0.5)
    return model, *families.rows_of(1, model.pad_id, lowest=2, end=11)


def own_texts(name, search):
    """Returns what this library generates for each row, up to its end."""
    model, ids, _ = writer(name)
    constraints = [ExcludeTokens([model.pad_id])] if name == "marian" else []
    return families.own_texts(model, ids, SEARCHES[search][0], LONGEST, constraints=constraints)


def torch_texts(name, search):
    """Returns what transformers generates for each row; None where rounding could prefer another text."""
    model, ids, real = writer(name)
    options = {"pad_token_id": model.pad_id, **SEARCHES[search][1]}
    if name == "marian":
        options |= {**WITHOUT_PADDING, "bad_words_ids": [[model.pad_id]]}
    loaded = written_and_loaded(model, WRITERS[name])
    found = families.torch_texts(loaded, ids, real, LONGEST, [model.eos_id], **options)
    return [text if margin > CLEAR else None for text, margin in found]


def written_and_loaded(model, config):
    """Writes a model with `to_huggingface` and returns what transformers loads."""
    kind, options = families.torch_class(config)
    with tempfile.TemporaryDirectory() as folder:
        to_huggingface(model, Path(folder) / "new", family=config["model_type"])
        return kind.from_pretrained(Path(folder) / "new", attn_implementation="eager", **options).eval()


def numbers_of(outputs, real):
    """Returns a number for each row, or for each real position."""
    outputs = np.asarray(outputs)
    vector = np.random.default_rng(7).normal(size=outputs.shape[-1])
    products = outputs @ (vector / np.linalg.norm(vector))
    return products[real] if real is not None and real.shape == products.shape else products.reshape(-1)


def own_numbers(name):
    """Returns this library's numbers for a case."""
    model = families.own_model(families.CONFIGS[name])
    inputs, _, real = families.inputs_of(model)
    return numbers_of(families.own_outputs(model, inputs)[0], real)


def torch_numbers(name):
    """Returns transformers' numbers for a case."""
    model = families.own_model(families.CONFIGS[name])
    _, inputs, real = families.inputs_of(model)
    loaded = written_and_loaded(model, families.CONFIGS[name])
    return numbers_of(families.torch_outputs(loaded, inputs)[0], real)


def main():
    """Records all cases, and prints the differences between this library and transformers."""
    import torch
    import transformers

    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    named = sys.argv[1:]
    record = json.loads(RECORD.read_text()) if named else {"versions": versions}
    record["numbers"] = {name: record.get("numbers", {}).get(name) for name in CASES}
    for name in named or CASES:
        numbers = torch_numbers(name)
        largest = np.abs(own_numbers(name) - numbers).max()
        print(f"{name:32} {len(numbers):4} numbers, differences of {largest:.1e} at most")
        record["numbers"][name] = [round(float(number), 6) for number in numbers]
    texts = {
        name: {search: torch_texts(name, search) for search in SEARCHES} for name in WRITERS if not named
    }
    record["texts"] = texts or record["texts"]
    for name, found in texts.items():
        print(name, found, {search: own_texts(name, search) == found[search] for search in SEARCHES})
    RECORD.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
