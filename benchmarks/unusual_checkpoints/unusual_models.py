"""Makes folders of models with unusual, legal configurations, and compares what this library and transformers compute.

usage: python benchmarks/unusual_checkpoints/unusual_models.py [--folders 510] [--first 0] [--family bert]

It needs the extra `parity`.

A number names each folder: `--first 17 --folders 1` makes folder 17 again. transformers makes a model with random
weights, saves it, and loads it again from the changed config.json. What it computes then must be what this library
computes from the folder, or the library must refuse the folder with the name of a key. A folder that transformers
itself does not load is drawn again.
"""

import argparse
import collections
import copy
import json
import logging
import random
import sys
import tempfile
import warnings
from pathlib import Path

from keras_transformer.huggingface import FAMILIES, from_huggingface

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "huggingface"))
import families

CLOSE = 1e-4  # of the largest output
ATTEMPTS = 30
ACTIVATIONS = (
    *("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "swish", "tanh", "gelu_fast", "quick_gelu"),
    *("gelu_python", "gelu_accurate", "gelu_10", "mish", "relu2", "relu6", "sigmoid", "linear", "laplace"),
)
SHARES, EPSILONS = (0.0, 0.1, 0.3, 0.5), (1e-3, 1e-5, 1e-6, 1e-7, 1e-12)
LABELS = {"0": "sad", "1": "glad", "2": "neither"}
ROPES = (
    {"rope_type": "default", "rope_theta": 50.0},
    {"rope_type": "default"},
    {"rope_theta": 500.0},
    {"rope_type": "linear", "factor": 3.0},
    {"type": "linear", "factor": 2},
    {"rope_type": "linear", "factor": 2.0, "rope_theta": 70.0},
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 3.0},
    {
        "rope_type": "llama3",
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 3.0,
        "original_max_position_embeddings": 16,
        "rope_theta": 40.0,
    },
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    {"rope_type": "yarn", "factor": 2.0, "beta_fast": 8, "beta_slow": 2, "rope_theta": 90.0},
    {"type": "yarn", "factor": 2.0, "attention_factor": 1.5, "truncate": False},
    {"rope_type": "yarn", "factor": 8.0, "mscale": 0.7, "mscale_all_dim": 0.5},
    {"rope_type": "yarn", "factor": 8.0, "mscale": 1.0},
    {"rope_type": "longrope", "factor": 2.0, "short_factor": [1.0, 1.5, 2.0], "long_factor": [2.0, 3.0, 4.0]},
    {"rope_type": "default", "partial_rotary_factor": 0.5},
    {"full_attention": {"rope_type": "linear", "factor": 2.0}, "sliding_attention": {"rope_type": "default"}},
    {"full_attention": {"rope_type": "default", "rope_theta": 80.0}},
    {"rope_type": "proportional", "factor": 2.0},
    {"rope_type": "mrope", "mrope_section": [1, 1, 1]},
    None,
)
# Values for keys of config.json. Those of a family are drawn among the keys that its class of transformers has, and
# among `ANYWHERE`.
VALUES = {
    **dict.fromkeys(
        ("hidden_act", "activation", "hidden_activation", "activation_function", "pooler_act"), ACTIVATIONS
    ),
    **dict.fromkeys(("layer_norm_eps", "layer_norm_epsilon", "rms_norm_eps", "norm_eps"), EPSILONS),
    "classifier_activation": ACTIVATIONS,
    "classifier_pooling": ("cls", "mean"),
    "classifier_bias": (True, False),
    "tie_word_embeddings": (True, False),
    "is_decoder": (True,),
    "add_cross_attention": (True,),
    "use_cache": (False, True),
    "type_vocab_size": (1, 2, 5),
    "sinusoidal_pos_embds": (True,),
    "max_position_embeddings": (16, 23, 64),
    "n_positions": (16, 23, 64),
    "relative_attention_num_buckets": (4, 8, 32, 50),
    "relative_attention_max_distance": (9, 33, 128, 300),
    "use_task_id": (True, False),
    "task_type_vocab_size": (3, 5),
    "embedding_size": (5, 8, 30),
    "scale_attn_weights": (True, False),
    "scale_attn_by_inverse_layer_idx": (True, False),
    "reorder_and_upcast_attn": (True, False),
    "rope_parameters": ROPES,
    "attention_bias": (True, False),
    "mlp_bias": (True, False),
    "norm_bias": (True, False),
    "decoder_bias": (True, False),
    "local_attention": (2, 4, 5, 7, 128),
    "sliding_window": (None, 1, 3, 5, 8, 64),
    "use_sliding_window": (True, False),
    "max_window_layers": (0, 1, 2, 28),
    "use_bidirectional_attention": (True, False),
    "query_pre_attn_scalar": (1, 7, 16, 256),
    "final_logit_softcapping": (None, 2.0, 30.0),
    "attn_logit_softcapping": (None, 2.0, 50.0),
    "feed_forward_proj": (
        *("relu", "gated-gelu", "gated-silu", "gelu", "gated-relu", "gelu_new", "gated-gelu_new"),
        *("silu", "gated-tanh", "gated-swish"),
    ),
    "scale_embedding": (True, False),
    "share_encoder_decoder_embeddings": (True, False),
    "decoder_vocab_size": (None, 37, 41),
    "normalize_before": (True, False),
    "normalize_embedding": (True, False),
    "qkv_bias": (True, False),
    "image_size": (8, 12),
    "num_channels": (1, 3, 4),
    "pooler_output_size": (None, 5, 12),
    "encoder_stride": (4, 16),
    "initializer_range": (0.0, 1.0),
    "initializer_factor": (0.5, 2.0),
    "chunk_size_feed_forward": (0, 3),
    "pretraining_tp": (1, 2),
    "problem_type": ("single_label_classification", "multi_label_classification", "regression"),
    "summary_type": ("last", "mean"),
    "sparse_prediction": (True, False),
    "resid_pdrop": SHARES,
    "partial_rotary_factor": (0.5, 1.0),
    "rope_theta": (30.0, 500.0),
    "rope_local_base_freq": (20.0,),
    "global_rope_theta": (90.0,),
    "local_rope_theta": (25.0,),
    "global_attn_every_n_layers": (1, 2, 4),
    "sliding_window_pattern": (1, 2, 3),
    "rope_scaling": ROPES,
    "original_max_position_embeddings": (8, 32),
    "position_embedding_type": ("absolute", "relative_key", "relative_key_query"),
    "pruned_heads": ({}, {"0": [1]}),
    "layer_types": ("random", "full", "sliding"),
    "scale_decoder_outputs": (True, False),
    "num_hidden_layers": (1, 2, 3),
    "static_position_embeddings": (True, False),
    "add_final_layer_norm": (True, False),
    "add_bias_logits": (True, False),
    "extra_pos_embeddings": (0, 2),
    "use_mrope": (True, False),
    "rope_interleaved": (True, False),
    "is_gated_act": (True, False),
    "dense_act_fn": ("relu", "gelu_new"),
    "is_encoder_decoder": (True, False),
    "output_hidden_states": (True,),
    "output_attentions": (True,),
    "return_dict": (False,),
    "torchscript": (True,),
    "num_labels": (1, 2, 5),
    "hidden_size": (12, 18),
    "n_ctx": (9,),
    "head_dim": (4, 6, 10),
    "use_bfloat16": (True,),
    "layer_norm_elementwise_affine": (False,),
    "qk_layernorm": (True,),
    "no_rope_layers": ([1, 0], [0, 0], [1, 1]),
    "no_rope_layer_interval": (1, 2, 3),
}
# Keys that are drawn for every family, though its class of transformers may not have them.
ANYWHERE = (
    *("position_embedding_type", "pruned_heads", "rope_scaling", "problem_type", "output_hidden_states"),
    *(
        "return_dict",
        "torchscript",
        "num_labels",
        "chunk_size_feed_forward",
        "layer_types",
        "num_hidden_layers",
    ),
    *("head_dim", "use_bfloat16", "layer_norm_elementwise_affine", "original_max_position_embeddings"),
)
OF_CLASSES = {
    "decoder": (
        *("rope_theta", "partial_rotary_factor", "sliding_window", "attention_bias", "mlp_bias", "use_mrope"),
        *(
            "rope_interleaved",
            "pretraining_tp",
            "rope_local_base_freq",
            "sliding_window_pattern",
            "qk_layernorm",
        ),
        *("use_bidirectional_attention", "attn_logit_softcapping"),
    ),
    "encoder": ("global_rope_theta", "local_rope_theta", "global_attn_every_n_layers", "hidden_size"),
    "both": (
        *("normalize_before", "normalize_embedding", "static_position_embeddings", "add_final_layer_norm"),
        *("add_bias_logits", "extra_pos_embeddings", "scale_decoder_outputs", "is_gated_act", "dense_act_fn"),
        *("is_encoder_decoder", "n_positions"),
    ),
}
IDS = ("pad_token_id", "bos_token_id", "eos_token_id")
MARKS = (0, 1, families.EOS, families.VOCAB - 1)  # ids that the texts do not have


def bases():
    """Returns for each family its configurations in `families`, with a class."""
    found = collections.defaultdict(list)
    for config in families.CONFIGS.values():
        found[config["model_type"]].append(config)
    return found


def kind_of(family):
    """Returns the kind of a family: "decoder", "both" for an encoder with a decoder, or "encoder"."""
    if "ForCausalLM" in FAMILIES[family].architectures[0] or family == "gpt2":
        return "decoder"
    return "both" if hasattr(FAMILIES[family], "scales") or "seq2seq" in _modules(family) else "encoder"


def _modules(family):
    return " ".join(each.__module__ for each in type(FAMILIES[family]).__mro__)


def sizes(numbers, config):
    """Draws the sizes of a model: heads that divide its width, and so on."""
    heads, width = numbers.choice((1, 2, 3, 4, 6)), numbers.choice((2, 4, 6))
    drawn = {
        "num_hidden_layers": numbers.choice((1, 2, 3)),
        "num_attention_heads": heads,
        "hidden_size": heads * width,
        "intermediate_size": numbers.choice((7, 16, 19)),
        "num_key_value_heads": numbers.choice([n for n in range(1, heads + 1) if heads % n == 0] + [None]),
        "vocab_size": numbers.choice((families.VOCAB, 37, 64)),
        **{"n_layer": numbers.choice((1, 2, 3)), "n_head": heads, "n_embd": heads * width},
        "n_inner": numbers.choice((None, 9, 24)),
        **{"n_layers": numbers.choice((1, 2)), "n_heads": heads, "dim": heads * width, "hidden_dim": 13},
        **{"d_model": 12 * numbers.choice((1, 2)), "d_kv": numbers.choice((3, 7, 8)), "num_heads": heads},
        "num_layers": numbers.choice((1, 2)),
        "num_decoder_layers": numbers.choice((None, 1, 2)),
        "d_ff": numbers.choice((7, 16)),
        **{f"{side}_layers": numbers.choice((1, 2)) for side in ("encoder", "decoder")},
        **{f"{side}_attention_heads": numbers.choice((1, 2, 3, 6)) for side in ("encoder", "decoder")},
        **{f"{side}_ffn_dim": numbers.choice((7, 16)) for side in ("encoder", "decoder")},
    }
    chosen = {key: value for key, value in drawn.items() if key in config and numbers.random() < 0.6}
    groups = (
        ("num_attention_heads", "hidden_size", "num_key_value_heads"),
        ("n_head", "n_embd"),
        ("n_heads", "dim"),
        ("d_model", "encoder_attention_heads", "decoder_attention_heads"),
    )
    for group in groups:
        if any(key in chosen for key in group):
            chosen |= {key: drawn[key] for key in group if key in config}
    if config.get("model_type") == "marian":
        chosen |= {
            key: config[key] for key in chosen if key.startswith("decoder_") and key != "decoder_layers"
        }
        if "encoder_attention_heads" in chosen and numbers.random() < 0.8:
            chosen["decoder_attention_heads"] = chosen["encoder_attention_heads"]
        if "encoder_ffn_dim" in chosen and numbers.random() < 0.8:
            chosen["decoder_ffn_dim"] = chosen["encoder_ffn_dim"]
    return chosen


def draw(number, attempt, family):
    """Draws a configuration.

    Returns:
        The configuration to make a model of; and the keys that are set in config.json afterwards.
    """
    import transformers

    numbers = random.Random(f"{number}-{attempt}")
    config = copy.deepcopy(numbers.choice(bases()[family]))
    own = set(transformers.AutoConfig.for_model(family).to_dict())
    config |= sizes(numbers, config)
    known = {*own, *({*ANYWHERE, *OF_CLASSES[kind_of(family)]} & FAMILIES[family].known_keys)}
    if numbers.random() < 0.1:  # a key that the library does not know is refused, which would hide the others
        known |= {*ANYWHERE}
    known = sorted(known & {*VALUES})
    shares = sorted(key for key in own if "drop" in key)
    changes = {
        key: copy.deepcopy(numbers.choice(VALUES[key]))  # transformers changes a dict that it gets
        for key in numbers.sample(known, min(len(known), numbers.randint(1, 4)))
    }
    if shares and numbers.random() < 0.3:
        changes[numbers.choice(shares)] = numbers.choice(SHARES)
    if numbers.random() < 0.3:
        key = numbers.choice(IDS)
        changes[key] = numbers.choice((*MARKS, *((None,) if key != "eos_token_id" else ())))
    if kind_of(family) == "decoder" and numbers.random() < 0.2:
        changes["eos_token_id"] = [families.EOS, numbers.choice((0, 1))]
    layers = config.get("num_hidden_layers", 1)
    if isinstance(changes.get("layer_types"), str):
        changes["layer_types"] = {
            "random": [numbers.choice(families.LOCAL) for _ in range(layers)],
            "full": [families.LOCAL[1]] * layers,
            "sliding": [families.LOCAL[0]] * layers,
        }[changes["layer_types"]]
    if "ForSequenceClassification" in str(config.get("architectures")) and numbers.random() < 0.4:
        changes["id2label"] = {
            str(i): numbers.choice((f"LABEL_{i}", f"c{i}")) for i in range(numbers.choice((1, 2, 4)))
        }
    if numbers.random() < 0.5:
        return {**config, **changes}, {}, changes
    return {**config, **{key: value for key, value in changes.items() if key in own}}, changes, changes


def save(number, config, later, folder):
    """Saves transformers' model of a configuration, with random weights, and changes its config.json."""
    import torch

    numbers = random.Random(f"{number}-files")
    model = families.torch_model(
        {**config, "architectures": config["architectures"]} if "architectures" in config else config, number
    )
    dtype = numbers.choice((torch.float32, torch.float32, torch.float32, torch.float16, torch.bfloat16))
    if config["model_type"] in (
        "marian",
        "pegasus",
    ):  # transformers computes with rounded sinusoids, the library not
        dtype = torch.float32
    size = numbers.choice(("5GB", "5GB", "5GB", 4000))
    model.to(dtype).save_pretrained(folder, max_shard_size=size)
    path = folder / "config.json"
    stored = json.loads(path.read_text())
    style = numbers.choice(("new", "old", "sparse"))
    if style == "old":
        stored = as_version_4(stored)
    elif style == "sparse":
        usual = type(model.config)().to_dict()
        stored = {
            key: value
            for key, value in stored.items()
            if key not in usual or usual[key] != value or key == "model_type"
        }
    if numbers.random() < 0.3:
        stored |= {"torchscript": False, "_name_or_path": "somebody/model", "use_cache": True}
    path.write_text(json.dumps({**stored, **later}))


def as_version_4(config):
    """Returns a config.json as transformers 4 wrote it."""
    config = dict(config)
    if "dtype" in config:
        config["torch_dtype"] = config.pop("dtype")
    rope = config.get("rope_parameters")
    if isinstance(rope, dict) and "rope_type" in rope:
        config.pop("rope_parameters")
        config["rope_theta"] = rope.get("rope_theta", 10000.0)
        scaling = {key: value for key, value in rope.items() if key != "rope_theta"}
        config["rope_scaling"] = None if scaling == {"rope_type": "default"} else scaling
    return config


def load_reference(folder):
    """Loads transformers' model from a folder; None where it needs other tensors, or refuses the folder."""
    import torch

    stored = json.loads((folder / "config.json").read_text())
    kind, options = families.torch_class(
        {**stored, "has_pooler": True} if stored["model_type"] == "vit" else stored
    )
    try:
        model, found = kind.from_pretrained(
            folder,
            output_loading_info=True,
            attn_implementation="eager",
            dtype=torch.float32,
            return_dict=True,
            **options,
        )
    except Exception:  # transformers raises errors of many classes for what it does not support
        return None
    return None if found["missing_keys"] or found["mismatched_keys"] else model.eval()


def compare(folder, changes, number=0):
    """Compares a folder: returns "equal", "refused", "unnamed", "wrong", "crash" or "illegal", and a sentence."""
    there = load_reference(folder)
    if there is None:
        return "illegal", ""
    stored = json.loads((folder / "config.json").read_text())
    try:
        model = from_huggingface(folder)
    except ValueError as error:
        keys = [key for key in (*changes, *_keys(stored)) if key in str(error)]
        return ("refused" if keys else "unnamed"), str(error)
    except Exception as error:
        return "crash", repr(error)
    try:
        _, inputs_there, _ = families.inputs_of(model, number)
        expected = families.torch_outputs(there, inputs_there)
    except Exception as error:
        return "illegal", repr(error)
    try:
        found = families.difference(model, there, number)
    except Exception as error:
        return ("illegal" if "nearly constant" in str(error) else "crash"), repr(error)
    largest = max(abs(each).max() for each in expected)
    return ("equal" if found <= CLOSE * max(1.0, largest) else "wrong"), f"{found:.2g} of {largest:.3g}"


def _keys(config):
    """Lists the keys of a config.json, also those of dicts in it."""
    return [*config, *(key for value in config.values() if isinstance(value, dict) for key in _keys(value))]


def try_folder(number, family=None):
    """Makes folder `number` and compares it: returns the family, the changed keys, the outcome and a sentence."""
    names = sorted(FAMILIES)
    family = family or names[number % len(names)]
    for attempt in range(ATTEMPTS):
        with tempfile.TemporaryDirectory() as temporary, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            config, later, changes = draw(number, attempt, family)
            try:
                save(number, config, later, Path(temporary))
            except Exception:  # transformers cannot make it
                continue
            outcome, sentence = compare(Path(temporary), changes, number)
            if outcome != "illegal":
                return family, changes, outcome, sentence
    return family, {}, "illegal", ""


def main():
    """Prints a line for each folder that is neither equal nor refused, and the numbers of each outcome."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folders", type=int, default=510)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--family", choices=sorted(FAMILIES))
    parser.add_argument("--refused", action="store_true", help="show the sentences of refusals too")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    counts = collections.Counter()
    for number in range(options.first, options.first + options.folders):
        family, changes, outcome, sentence = try_folder(number, options.family)
        counts[outcome] += 1
        if outcome != "equal" and (outcome != "refused" or options.refused):
            print(number, family, changes, outcome, sentence, flush=True)
    print(dict(counts))


if __name__ == "__main__":
    main()
