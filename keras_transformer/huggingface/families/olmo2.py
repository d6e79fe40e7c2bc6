"""OLMo 2: Team OLMo, 2024, "2 OLMo 2 Furious". Norms stand after the sublayers, and over whole queries and keys."""

from keras_transformer.huggingface.configs import with_defaults
from keras_transformer.huggingface.families.decoders import LAYER, ROWS, DecoderFamily
from keras_transformer.huggingface.tokenizers.byte_pair import BYTE_PAIR

FAMILY = DecoderFamily(
    "olmo2",
    ("Olmo2ForCausalLM",),
    BYTE_PAIR,
    rows={
        **with_defaults(ROWS, vocab_size=50304, layer_norm_epsilon=1e-5, pad_id=1, bos_id=None, eos_id=50279),
        "feed_forward_bias": (None, False),
        "query_key_norm": (None, "rms"),
        "norm_over_heads": (None, True),
        "sandwich_norm": (None, True),
        "input_norm": (None, False),
    },
    names=LAYER._replace(norms=("post_attention_layernorm", "post_feedforward_layernorm")),
)
