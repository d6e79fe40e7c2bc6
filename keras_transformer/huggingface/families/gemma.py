"""Gemma 1: Gemma Team, 2024, "Gemma: Open Models Based on Gemini Research and Technology"."""

from dataclasses import dataclass

from keras_transformer.huggingface.configs import check_config, with_defaults
from keras_transformer.huggingface.families import gemma2
from keras_transformer.huggingface.families.decoders import LAYER, ROWS, DecoderFamily
from keras_transformer.huggingface.tokenizers.sentence_piece import sentence_piece_kind

ACTIVATION = "gelu_pytorch_tanh"


@dataclass(frozen=True)
class GemmaFamily(DecoderFamily):
    """Gemma 1, whose first files say "gelu" for the form with tanh."""

    def make_model(self, config, **kwargs):
        """Makes the model that a config.json describes."""
        if config.get("hidden_act") == "gelu":
            config = {**config, "hidden_act": ACTIVATION}
        # transformers reads `hidden_act` alone.
        check_config(config, hidden_activation=ACTIVATION)
        return super().make_model(config, **kwargs)


FAMILY = GemmaFamily(
    "gemma",
    ("GemmaForCausalLM",),
    sentence_piece_kind("gemma", "GemmaTokenizer", gemma2.TOKENS, add_dummy_prefix=False),
    rows={
        **with_defaults(
            ROWS,
            vocab_size=256000,
            d_model=3072,
            d_ff=24576,
            num_layers=28,
            num_heads=16,
            num_key_value_heads=16,
            key_dim=256,
            max_length=8192,
            tie_embeddings=True,
            activation=ACTIVATION,
            pad_id=0,
            bos_id=2,
            eos_id=1,
        ),
        "feed_forward_bias": (None, False),
        "norm": (None, "zero_centered_rms"),
        # Of a number, the embeddings are scaled. The scores are divided by its root.
        "scalar": ("head_dim", 256),
    },
    names=LAYER,
)
