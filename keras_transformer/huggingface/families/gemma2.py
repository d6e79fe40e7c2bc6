"""Gemma 2: Gemma Team, 2024, "Gemma 2: Improving Open Language Models at a Practical Size"."""

from keras_transformer.huggingface.families.decoders import DEFAULTS, FULL, LAYER, SLIDING, DecoderFamily
from keras_transformer.huggingface.tokenizers.sentence_piece import sentence_piece_kind

GEMMA_DEFAULTS = {
    **DEFAULTS,
    "vocab_size": 256000,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "final_logit_softcapping": None,
    "attn_logit_softcapping": None,
}
GEMMA_LAYER = LAYER._replace(norms=(*LAYER.norms, "pre_feedforward_layernorm", "post_feedforward_layernorm"))

TOKENS = {"pad": "<pad>", "eos": "<eos>", "bos": "<bos>", "unk": "<unk>"}
TOKENIZER = sentence_piece_kind("gemma2", "GemmaTokenizer", TOKENS, add_dummy_prefix=False)


def layer_types(config):
    """The kinds of layers: every other one has a window, the first one too."""
    return [FULL if i % 2 else SLIDING for i in range(config["num_hidden_layers"])]


FAMILY = DecoderFamily(
    "gemma2",
    ("Gemma2ForCausalLM",),
    TOKENIZER,
    defaults={**GEMMA_DEFAULTS, "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0},
    layer_types=layer_types,
    writes_layer_types=True,
    activation="hidden_activation",
    norm="zero_centered_rms",
    names=GEMMA_LAYER,
    scaled=True,
    caps=True,
    biased=("attention_bias",),
)
