"""SmolLM3: Bakouch et al., 2025, "SmolLM3: smol, multilingual, long-context reasoner". Some layers have no positions.

Yang et al., 2025, "Rope to Nope and Back Again: A New Hybrid Attention Strategy".
"""

from keras_transformer.checks import check, check_positive
from keras_transformer.huggingface.configs import with_defaults
from keras_transformer.huggingface.families.decoders import FULL, ROWS, SLIDING, DecoderFamily
from keras_transformer.huggingface.tokenizers.byte_pair import BYTE_PAIR

# The values of the first key are 1 for the layers with rotary positions.
ROTATED, INTERVAL = "no_rope_layers", "no_rope_layer_interval"


def rotated(config):
    """Whether each layer has rotary positions: all but every `no_rope_layer_interval`-th."""
    count, given = config["num_hidden_layers"], config.get(ROTATED)
    if given is None:
        check_positive(**{INTERVAL: config[INTERVAL]})
        given = [(i + 1) % config[INTERVAL] for i in range(count)]
    rule = f"`{ROTATED}` of config.json must have a value for each of its {count} layers."
    check(len(given) == count, rule, **{ROTATED: given})
    return [bool(value) for value in given]


def layer_types(config):
    """The kinds of layers: those without rotary positions have a window, where config.json asks for windows."""
    windows = config["use_sliding_window"] and config["sliding_window"] is not None
    return [SLIDING if windows and not each else FULL for each in rotated(config)]


FAMILY = DecoderFamily(
    "smollm3",
    ("SmolLM3ForCausalLM",),
    BYTE_PAIR,
    rows={
        **with_defaults(
            ROWS,
            vocab_size=128256,
            d_model=2048,
            num_layers=36,
            num_heads=16,
            num_key_value_heads=4,
            max_length=32768,
            tie_embeddings=True,
            pad_id=128004,
            bos_id=128000,
            eos_id=128001,
        ),
        "layer_types": ("layer_types", None),
        "uses_window": ("use_sliding_window", False),
        "sliding_window": ("sliding_window", None),
        "rotated": (ROTATED, None),
        "interval": (INTERVAL, 4),
        "theta": ("rope_theta", 2_000_000.0),
    },
    layer_types=layer_types,
    rotated=rotated,
)
