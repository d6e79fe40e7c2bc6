"""MPNet: Song et al., 2020, "MPNet: Masked and Permuted Pre-training for Language Understanding"."""

from keras_transformer.huggingface.families.encoder_words import DEFAULTS, KEYS, LAYER
from keras_transformer.huggingface.families.encoders import EncoderFamily
from keras_transformer.huggingface.families.roberta import heads
from keras_transformer.huggingface.tokenizers.word_piece import MPNET_WORD_PIECE

KEYS = {word: key for word, key in KEYS.items() if word != "num_segments"}
# transformers computes with these, whatever config.json says.
FIXED = {"pad_token_id": 1, "relative_attention_num_buckets": 32}
FAMILY = EncoderFamily(
    "mpnet",
    heads("MPNet", "mpnet", dropout=("hidden_dropout_prob",)),
    MPNET_WORD_PIECE,
    "mpnet.",
    {**DEFAULTS, **FIXED, "vocab_size": 30527, "bos_token_id": 0, "eos_token_id": 2},
    names=LAYER._replace(
        attention=tuple(f"attention.attn.{name}" for name in "qkvo"),
        norms=("attention.LayerNorm", "output.LayerNorm"),
    ),
    keys={**KEYS, "num_buckets": "relative_attention_num_buckets"},
    fixed=FIXED,
    offset=True,
    separators=2,
    biases="mpnet.encoder.relative_attention_bias.weight",
)
