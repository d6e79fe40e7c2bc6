"""GPT-2: Radford et al., 2019, "Language Models are Unsupervised Multitask Learners"."""

import re

from keras_transformer.huggingface.configs import (
    add_token_ids,
    arguments_from,
    check_config,
    check_divisible,
    keys_and_defaults,
    keys_of,
    token_id_keys,
)
from keras_transformer.huggingface.families.family import Family
from keras_transformer.huggingface.parts import check_parts, layers_from, stack_words
from keras_transformer.huggingface.tensors import LayerNames, layer_tensors, matrix, norm
from keras_transformer.huggingface.tokenizers.byte_pair import byte_pair_kind
from keras_transformer.layers import Decoder, DecoderLayer, LearnedPositions
from keras_transformer.models import LanguageModel

# The arguments of the model and of its layers.
MODEL, MODEL_DEFAULTS = keys_and_defaults(
    vocab_size=("vocab_size", 50257),
    d_model=("n_embd", 768),
    dropout=("embd_pdrop", 0.1),
    tie_embeddings=("tie_word_embeddings", True),
)
STACK, DEFAULTS = keys_and_defaults(
    num_layers=("n_layer", 12),
    num_heads=("n_head", 12),
    d_ff=("n_inner", None),
    activation=("activation_function", "gelu_new"),
    dropout=("resid_pdrop", 0.1),
    attention_dropout=("attn_pdrop", 0.1),
    layer_norm_epsilon=("layer_norm_epsilon", 1e-5),
)
DEFAULTS |= {**MODEL_DEFAULTS, "n_positions": 1024, "scale_attn_weights": True}
DEFAULTS |= {"bos_token_id": 50256, "eos_token_id": 50256}
LAYER = LayerNames(("attn.c_attn", "attn.c_proj"), ("ln_1", "ln_2"), ("mlp.c_fc",), "mlp.c_proj")


class Gpt2Family(Family):
    """GPT-2, whose checkpoints hold matrices as `(inputs, outputs)`."""

    def make_model(self, config, **kwargs):
        """Makes the model that a config.json describes."""
        config = {**self.defaults, **config}
        check_config(
            config,
            scale_attn_by_inverse_layer_idx=False,
            reorder_and_upcast_attn=False,
            add_cross_attention=False,
        )
        arguments, dtype = arguments_from(config, MODEL), kwargs.get("dtype")
        d_model = arguments["d_model"]
        words = arguments_from({**config, "n_inner": config["n_inner"] or 4 * d_model}, STACK)
        check_divisible(config, "n_embd", "n_head")
        scale = {"scale": None if config["scale_attn_weights"] else 1.0}
        layers = layers_from(DecoderLayer, words, d_model, dtype, scale, normalize_first=True)
        max_length = arguments_from(config, {"positions": "n_positions"})["positions"]
        return LanguageModel(
            **arguments,
            decoder=Decoder(layers, dtype=dtype, name="decoder"),
            positions=LearnedPositions(max_length, dtype=dtype, name="positions"),
            **add_token_ids(config, **kwargs, several=True),
        )

    def make_config(self, model):
        """Makes the config.json of a model."""
        family = self.model_type
        check_parts(family, positions=(model.positions, LearnedPositions), decoder=(model.decoder, Decoder))
        words = stack_words(family, model.decoder, model.d_model, normalize_first=True, unscaled=True)
        return {
            "model_type": family,
            "architectures": list(self.architectures),
            **keys_of(family, model, MODEL),
            **{key: words[word] for word, key in STACK.items()},
            "n_positions": model.positions.max_length,
            "scale_attn_weights": model.decoder.layers[0].self_attention.scale != 1.0,
            **token_id_keys(model),
        }

    def make_tensors(self, model):
        """Describes the tensors."""
        yield matrix("transformer.wte.weight", model.token_embedding.embeddings)
        yield matrix("lm_head.weight", model.output_embedding.embeddings)
        yield matrix("transformer.wpe.weight", model.positions.embeddings)
        for i, layer in enumerate(model.decoder.layers):
            yield from layer_tensors(f"transformer.h.{i}.", layer, LAYER, transposed=False)
        yield from norm("transformer.ln_f", model.decoder.norm)


FAMILY = Gpt2Family(
    "gpt2",
    ("GPT2LMHeadModel",),
    byte_pair_kind("gpt2", starts_with_bos=False, **dict.fromkeys(("unk", "bos", "eos"), "<|endoftext|>")),
    "transformer.",
    DEFAULTS,
    (re.compile(r"(^|\.)h\.\d+\.attn\.(masked_)?bias$"),),  # a causal mask
    model_classes=(LanguageModel,),
    more_keys=("scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn"),
)
