"""Gemma 2: Gemma Team, 2024, "Gemma 2: Improving Open Language Models at a Practical Size"."""

from keras_transformer.huggingface.configs import with_defaults
from keras_transformer.huggingface.families.decoders import FULL, LAYER, ROWS, SLIDING, DecoderFamily
from keras_transformer.huggingface.tokenizers.sentence_piece import sentence_piece_kind

GEMMA_ROWS = {
    **with_defaults(
        ROWS,
        vocab_size=256000,
        d_model=2304,
        d_ff=9216,
        num_layers=26,
        num_heads=8,
        num_key_value_heads=4,
        key_dim=256,
        max_length=8192,
        tie_embeddings=True,
        pad_id=0,
        bos_id=2,
        eos_id=1,
    ),
    "activation": ("hidden_activation", "gelu_pytorch_tanh"),
    "feed_forward_bias": (None, False),
    "norm": (None, "zero_centered_rms"),
    "sandwich_norm": (None, True),
    "scalar": ("query_pre_attn_scalar", 256),
    "logit_soft_cap": ("final_logit_softcapping", 30.0),
    "soft_cap": ("attn_logit_softcapping", 50.0),
    "layer_types": ("layer_types", None),
    "sliding_window": ("sliding_window", 4096),
}
GEMMA_LAYER = LAYER._replace(norms=(*LAYER.norms, "pre_feedforward_layernorm", "post_feedforward_layernorm"))

TOKENS = {"pad": "<pad>", "eos": "<eos>", "bos": "<bos>", "unk": "<unk>"}
TOKENIZER = sentence_piece_kind("gemma2", "GemmaTokenizer", TOKENS, add_dummy_prefix=False)


def layer_types(config):
    """The kinds of layers: every other one has a window, the first one too."""
    return [FULL if i % 2 else SLIDING for i in range(config["num_hidden_layers"])]


FAMILY = DecoderFamily(
    "gemma2", ("Gemma2ForCausalLM",), TOKENIZER, rows=GEMMA_ROWS, layer_types=layer_types, names=GEMMA_LAYER
)
