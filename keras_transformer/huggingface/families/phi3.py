"""Phi-3: Abdin et al., 2024, "Phi-3 Technical Report"; the models of 4,096 tokens."""

from keras_transformer.huggingface.configs import with_defaults
from keras_transformer.huggingface.families.decoders import LAYER, ROWS, DecoderFamily
from keras_transformer.huggingface.families.llama import TOKENIZER

FAMILY = DecoderFamily(
    "phi3",
    ("Phi3ForCausalLM",),
    TOKENIZER,
    rows={
        **with_defaults(
            ROWS,
            vocab_size=32064,
            d_model=3072,
            d_ff=8192,
            max_length=4096,
            layer_norm_epsilon=1e-5,
            pad_id=32000,
            eos_id=32000,
        ),
        "attention_bias": (None, False),
        "feed_forward_bias": (None, False),
        "dropout": ("resid_pdrop", 0.0),
        "sliding_window": ("sliding_window", None),
    },
    names=LAYER._replace(attention=("self_attn.qkv_proj", "self_attn.o_proj"), inner=("mlp.gate_up_proj",)),
)
