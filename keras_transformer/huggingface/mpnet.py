"""MPNet: Song et al., 2020, "MPNet: Masked and Permuted Pre-training for Language Understanding"."""

from keras_transformer.huggingface.encoder_words import DEFAULTS, KEYS
from keras_transformer.huggingface.encoders import EncoderNames, encoder_family
from keras_transformer.huggingface.roberta import heads
from keras_transformer.huggingface.word_piece import MPNET_WORD_PIECE

KEYS = {word: key for word, key in KEYS.items() if word != "num_segments"}
FAMILY = encoder_family(
    EncoderNames(
        "mpnet",
        heads("MPNet", "mpnet", dropout=("hidden_dropout_prob",)),
        "mpnet.",
        projections=tuple(f"attention.attn.{name}" for name in "qkvo"),
        attention_norm="attention.LayerNorm",
        keys={**KEYS, "num_buckets": "relative_attention_num_buckets"},
        defaults={
            **DEFAULTS,
            "vocab_size": 30527,
            "relative_attention_num_buckets": 32,
            "pad_token_id": 1,
            "bos_token_id": 0,
            "eos_token_id": 2,
        },
        # transformers computes with these, whatever config.json says.
        fixed={"pad_token_id": 1, "relative_attention_num_buckets": 32},
        offset=True,
        separators=2,
        biases="mpnet.encoder.relative_attention_bias.weight",
    ),
    MPNET_WORD_PIECE,
)
