"""ModernBERT: Warner et al., 2024, "Smarter, Better, Faster, Longer: A Modern Bidirectional Encoder"."""

from keras_transformer.huggingface.configs import ID_KEYS, arguments_from, keys_of
from keras_transformer.huggingface.families.encoder_words import HeadNames
from keras_transformer.huggingface.families.encoders import EncoderFamily
from keras_transformer.huggingface.families.gated_layers import (
    FULL,
    SLIDING,
    gated_layers,
    kinds_from,
    layer_keys,
)
from keras_transformer.huggingface.known_keys import ENCODER, ROPE
from keras_transformer.huggingface.parts import check_parts
from keras_transformer.huggingface.tensors import LayerNames, layer_tensors, matrix, norm
from keras_transformer.huggingface.tokenizers.byte_pair import MODERNBERT_BYTE_PAIR
from keras_transformer.layers import Encoder, EncoderLayer, LayerNormalization
from keras_transformer.models import ClassificationHead, MaskedLanguageHead, MultipleChoiceHead

# Keys of config.json for the arguments of the model, its norm, and the parts of its layers and heads.
MODEL = {"vocab_size": "vocab_size", "d_model": "hidden_size", "dropout": "embedding_dropout"}
NORM = {"epsilon": "norm_eps", "center": "norm_bias"}
ATTENTION = {"num_heads": "num_attention_heads", "use_bias": "attention_bias", "dropout": "attention_dropout"}
FEED_FORWARD = {"d_ff": "intermediate_size", "use_bias": "mlp_bias", "dropout": "mlp_dropout"}
FEED_FORWARD |= {"activation": "hidden_activation"}
WORDS = {"activation": "classifier_activation", "use_bias": "classifier_bias"}
CLASSES = {**WORDS, "pooling": "classifier_pooling"}
THETAS = {FULL: ("global_rope_theta", 160_000.0), SLIDING: ("local_rope_theta", 10_000.0)}
DEFAULTS = {
    "vocab_size": 50368,
    "hidden_size": 768,
    "num_hidden_layers": 22,
    "num_attention_heads": 12,
    "intermediate_size": 1152,
    "max_position_embeddings": 8192,
    "classifier_pooling": "cls",
    "norm_eps": 1e-5,
    "local_attention": 128,
    "global_attn_every_n_layers": 3,
    "pad_token_id": 50283,
    "bos_token_id": 50281,
    "eos_token_id": 50282,
    **dict.fromkeys(("hidden_activation", "classifier_activation"), "gelu"),
    **dict.fromkeys(("norm_bias", "attention_bias", "mlp_bias", "classifier_bias"), False),
    **dict.fromkeys(("attention_dropout", "mlp_dropout", "embedding_dropout", "classifier_dropout"), 0.0),
}
LAYER = LayerNames(("attn.Wqkv", "attn.Wo"), ("attn_norm", "mlp_norm"), ("mlp.Wi",), "mlp.Wo")
POOLED = {"pooler": "head.dense", "norm": "head.norm", "keys": CLASSES, "dropout": ("classifier_dropout",)}
SCORES = {"norm": "head.norm", "keys": WORDS, "biases": ("decoder.bias",), "output": "decoder.weight"}
HEADS = {
    "ModernBertModel": HeadNames(),
    "ModernBertForMaskedLM": HeadNames(MaskedLanguageHead, "head.dense", **SCORES),
    "ModernBertForSequenceClassification": HeadNames(ClassificationHead, "classifier", **POOLED),
    "ModernBertForMultipleChoice": HeadNames(MultipleChoiceHead, "classifier", **POOLED),
}


def layer_types(config):
    """The kinds of layers: every third one has no window, the first one too."""
    every = config["global_attn_every_n_layers"]
    return [SLIDING if i % every else FULL for i in range(config["num_hidden_layers"])]


def window_keys(window):
    """The keys for a window: the farthest token that a token sees is half of `local_attention` away."""
    return {} if window is None else {"local_attention": 2 * (window - 1)}


class ModernBertFamily(EncoderFamily):
    """ModernBERT, whose layers are those of Llama, but for masks, norms and windows."""

    def _encoder(self, config, words, dtype):
        kinds, window = kinds_from(config, layer_types), config["local_attention"] // 2 + 1
        attention = {**arguments_from(config, ATTENTION), "key_dim": words["d_model"] // words["num_heads"]}
        feed_forward = arguments_from(config, FEED_FORWARD)
        norms = {"norm": self._norm_kind(config), "layer_norm_epsilon": words["layer_norm_epsilon"]}
        options = {**norms, "first_norm": False, "dropout": 0.0, "dtype": dtype}
        layers = gated_layers(EncoderLayer, config, kinds, attention, feed_forward, window, THETAS, **options)
        return Encoder(layers, dtype=dtype, name="encoder")

    def make_config(self, model):
        """Makes the config.json of a model from its first layer, and checks that it makes the model's parts."""
        family = self.model_type
        check_parts(family, encoder=(model.encoder, Encoder), norm=(model.norm, LayerNormalization))
        first, max_length = model.encoder.layers[0], self.defaults["max_position_embeddings"]
        config = {"model_type": family, "cls_token_id": model.cls_id, "sep_token_id": model.sep_id}
        config |= {
            **layer_keys(family, model.encoder, window_keys, max_length, THETAS),
            **keys_of(family, model, {**MODEL, **ID_KEYS}),
            **keys_of(family, model.norm, NORM),
            **keys_of(family, first.self_attention, ATTENTION),
            **keys_of(family, first.feed_forward, FEED_FORWARD),
            **self._head_keys(model),
        }
        self._check_made(model, config, "encoder")
        return config

    def make_tensors(self, model):
        """Describes the tensors."""
        yield matrix("model.embeddings.tok_embeddings.weight", model.token_embedding.embeddings)
        yield from norm("model.embeddings.norm", model.norm)
        for i, layer in enumerate(model.encoder.layers):
            yield from layer_tensors(f"model.layers.{i}.", layer, LAYER)
        yield from norm("model.final_norm", model.encoder.norm)
        yield from self._head_tensors(model)


FAMILY = ModernBertFamily(
    "modernbert",
    HEADS,
    MODERNBERT_BYTE_PAIR,
    "model.",
    DEFAULTS,
    guessed_keys=("max_position_embeddings",),  # rotary positions have no limit
    keys={**MODEL, "num_heads": "num_attention_heads", "layer_norm_epsilon": "norm_eps"},
    more_keys=(
        *(*ENCODER, *ROPE, "layer_types", "layer_norm_eps", "mlp_dropout"),
        *("global_rope_theta", "local_rope_theta"),
    ),
    fixed={"decoder_bias": True, "rope_scaling": None, "tie_word_embeddings": True},
    norm_bias="norm_bias",
)
