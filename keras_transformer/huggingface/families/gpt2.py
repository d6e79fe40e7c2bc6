"""GPT-2: Radford et al., 2019, "Language Models are Unsupervised Multitask Learners"."""

import re

from keras_transformer.huggingface.configs import (
    ID_PLACES,
    check_config,
    check_divisible,
    read_rows,
    token_ids,
)
from keras_transformer.huggingface.families.family import TOKEN_PLACES, Family, tokens_in_and_out
from keras_transformer.huggingface.tensors import LayerNames, layer_tensors, matrix, norm
from keras_transformer.huggingface.tokenizers.byte_pair import byte_pair_kind
from keras_transformer.layers import Decoder, DecoderLayer, LearnedPositions, MultiHeadAttention
from keras_transformer.models import LanguageModel

ROWS = {
    "vocab_size": ("vocab_size", 50257),
    "d_model": ("n_embd", 768),
    "embedding_dropout": ("embd_pdrop", 0.1),
    "tie_embeddings": ("tie_word_embeddings", True),
    "max_length": ("n_positions", 1024),
    "num_layers": ("n_layer", 12),
    "num_heads": ("n_head", 12),
    "d_ff": ("n_inner", None),
    "activation": ("activation_function", "gelu_new"),
    "dropout": ("resid_pdrop", 0.1),
    "attention_dropout": ("attn_pdrop", 0.1),
    "layer_norm_epsilon": ("layer_norm_epsilon", 1e-5),
    "is_scaled": ("scale_attn_weights", True),
    "pad_id": ("pad_token_id", None),
    "bos_id": ("bos_token_id", 50256),
    "eos_id": ("eos_token_id", 50256),
}
FIRST = "decoder.layers.0"
PLACES = {
    "embedding_dropout": "embeddings.dropout",
    **TOKEN_PLACES,
    "max_length": "embeddings.positions.max_length",
    "num_layers": "decoder.num_layers",
    "num_heads": f"{FIRST}.self_attention.num_heads",
    "d_ff": f"{FIRST}.feed_forward.d_ff",
    "activation": f"{FIRST}.feed_forward.activation",
    "dropout": f"{FIRST}.self_attention_residual.dropout",
    "attention_dropout": f"{FIRST}.self_attention.dropout",
    "layer_norm_epsilon": f"{FIRST}.self_attention_residual.layer_norm_epsilon",
    "is_scaled": lambda model: model.decoder.layers[0].self_attention.scale != 1.0,
    **ID_PLACES,
}
LAYER = LayerNames(("attn.c_attn", "attn.c_proj"), ("ln_1", "ln_2"), ("mlp.c_fc",), "mlp.c_proj")


class Gpt2Family(Family):
    """GPT-2, whose checkpoints hold matrices as `(inputs, outputs)`."""

    def make_model(self, config, **kwargs):
        """Makes the model that a config.json describes."""
        check_config(
            config,
            scale_attn_by_inverse_layer_idx=False,
            reorder_and_upcast_attn=False,
            add_cross_attention=False,
        )
        arguments, dtype = read_rows(config, self.rows), kwargs.get("dtype")
        d_model, num_heads, d_ff = (arguments[name] for name in ("d_model", "num_heads", "d_ff"))
        check_divisible(arguments, self.rows)
        attention = {
            "num_heads": num_heads,
            "key_dim": d_model // num_heads,
            "dropout": arguments["attention_dropout"],
            "scale": None if arguments["is_scaled"] else 1.0,
        }
        options = {name: arguments[name] for name in ("activation", "dropout", "layer_norm_epsilon")}
        layers = [
            DecoderLayer(
                attention=MultiHeadAttention(**attention, dtype=dtype, name="self_attention"),
                d_ff=d_ff or 4 * d_model,
                normalize_first=True,
                **options,
                dtype=dtype,
                name=f"layer_{i}",
            )
            for i in range(arguments["num_layers"])
        ]
        return LanguageModel(
            **tokens_in_and_out(
                arguments,
                dtype,
                positions=LearnedPositions(arguments["max_length"], dtype=dtype, name="positions"),
                dropout=arguments["embedding_dropout"],
            ),
            decoder=Decoder(layers, dtype=dtype, name="decoder"),
            **token_ids(arguments, **kwargs, several=True),
        )

    def make_tensors(self, model):
        """Describes the tensors."""
        yield matrix("transformer.wte.weight", model.embeddings.tokens.embeddings)
        yield matrix("lm_head.weight", model.output_embedding.embeddings)
        yield matrix("transformer.wpe.weight", model.embeddings.positions.embeddings)
        for i, layer in enumerate(model.decoder.layers):
            yield from layer_tensors(f"transformer.h.{i}.", layer, LAYER, transposed=False)
        yield from norm("transformer.ln_f", model.decoder.norm)


FAMILY = Gpt2Family(
    "gpt2",
    ("GPT2LMHeadModel",),
    byte_pair_kind("gpt2", starts_with_bos=False, **dict.fromkeys(("unk", "bos", "eos"), "<|endoftext|>")),
    "transformer.",
    # A causal mask.
    ignored=(re.compile(r"(^|\.)h\.\d+\.attn\.(masked_)?bias$"),),
    model_classes=(LanguageModel,),
    rows=ROWS,
    places=PLACES,
    more_keys=("scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn"),
)
