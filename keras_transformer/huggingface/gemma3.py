"""Gemma 3, the text model: Gemma Team, 2025, "Gemma 3 Technical Report"."""

from keras_transformer.huggingface.decoders import FULL, SLIDING, DecoderNames, decoder_family
from keras_transformer.huggingface.gemma2 import GEMMA_DEFAULTS, NORMS, TOKENIZER
from keras_transformer.huggingface.rotary import positions_from, rope_of

THETA_KEYS = {FULL: ("rope_theta", 1_000_000.0), SLIDING: ("rope_local_base_freq", 10_000.0)}


def layer_types(config):
    """The kinds of layers: each `sliding_window_pattern`-th has no window."""
    pattern = config["sliding_window_pattern"]
    return [SLIDING if (i + 1) % pattern else FULL for i in range(config["num_hidden_layers"])]


def positions(config, kind):
    """Makes the positions of a layer: those with a window have a wavelength of their own, and no scaling."""
    key, theta = THETA_KEYS[kind]
    given = config.get("rope_parameters") or {}
    rope = dict(given.get(kind) or (config.get("rope_scaling") if kind == FULL else None) or {})
    return positions_from(config, {"rope_theta": config.get(key, theta), **rope})


def position_keys(family, by_kind, max_length):
    """Returns the keys of config.json: those of transformers 5, and those of transformers 4."""
    ropes = {kind: {"rope_type": "default", "rope_theta": theta} for kind, (_, theta) in THETA_KEYS.items()}
    ropes |= {kind: rope_of(family, each) for kind, each in by_kind.items()}
    return {
        "max_position_embeddings": max_length,
        "rope_parameters": ropes,
        **{key: ropes[kind]["rope_theta"] for kind, (key, _) in THETA_KEYS.items()},
    }


FAMILY = decoder_family(
    DecoderNames(
        "gemma3_text",
        "Gemma3ForCausalLM",
        defaults={
            **GEMMA_DEFAULTS,
            "vocab_size": 262208,
            "max_position_embeddings": 131072,
            "sliding_window_pattern": 6,
        },
        layer_types=layer_types,
        writes_layer_types=True,
        window_keys=lambda window: {"sliding_window": window},
        positions=positions,
        position_keys=position_keys,
        activation="hidden_activation",
        norm="zero_centered_rms",
        query_key_norm=True,
        norms=NORMS,
        scaled=True,
        caps=True,
        biased=("attention_bias",),
    ),
    TOKENIZER,
)
