"""Phi-3: Abdin et al., 2024, "Phi-3 Technical Report"; the models of 4,096 tokens."""

from keras_transformer.huggingface.families.decoders import DEFAULTS, LAYER, DecoderFamily
from keras_transformer.huggingface.families.llama import TOKENIZER

FAMILY = DecoderFamily(
    "phi3",
    ("Phi3ForCausalLM",),
    TOKENIZER,
    defaults={
        **DEFAULTS,
        "vocab_size": 32064,
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "sliding_window": None,
        "pad_token_id": 32000,
        "eos_token_id": 32000,
    },
    names=LAYER._replace(attention=("self_attn.qkv_proj", "self_attn.o_proj"), inner=("mlp.gate_up_proj",)),
    biased=(),
)
