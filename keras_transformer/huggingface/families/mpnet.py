"""MPNet: Song et al., 2020, "MPNet: Masked and Permuted Pre-training for Language Understanding"."""

from keras_transformer.huggingface.configs import with_defaults
from keras_transformer.huggingface.families.encoders import LAYER, ROWS, EncoderFamily
from keras_transformer.huggingface.families.roberta import heads
from keras_transformer.huggingface.tokenizers.word_piece import MPNET_WORD_PIECE

# transformers computes with these, whatever config.json says.
FIXED = {"pad_token_id": 1, "relative_attention_num_buckets": 32}
FAMILY = EncoderFamily(
    "mpnet",
    heads("MPNet", "mpnet", dropout=("hidden_dropout_prob",)),
    MPNET_WORD_PIECE,
    "mpnet.",
    rows={
        **with_defaults(ROWS, vocab_size=30527, pad_id=1, cls_id=0, sep_id=2),
        "num_segments": (None, 0),
        "num_buckets": ("relative_attention_num_buckets", 32),
    },
    names=LAYER._replace(
        attention=tuple(f"attention.attn.{name}" for name in "qkvo"),
        norms=("attention.LayerNorm", "output.LayerNorm"),
    ),
    fixed=FIXED,
    offset=True,
    separators=2,
    biases="mpnet.encoder.relative_attention_bias.weight",
)
