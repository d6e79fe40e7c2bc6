"""ModernBERT: Warner et al., 2024, "Smarter, Better, Faster, Longer: A Modern Bidirectional Encoder"."""

from keras_transformer.huggingface.configs import with_defaults
from keras_transformer.huggingface.families.encoders import FIRST, PLACES, ROWS, EncoderFamily, norm_kind
from keras_transformer.huggingface.families.gated_layers import (
    FULL,
    SLIDING,
    gated_layers,
    kinds_from,
    kinds_of,
    rope_keys,
    ropes_from,
    window_of,
    windows_from,
)
from keras_transformer.huggingface.families.heads import HeadNames
from keras_transformer.huggingface.known_keys import ENCODER, ROPE
from keras_transformer.huggingface.tensors import LayerNames, layer_tensors, matrix, norm
from keras_transformer.huggingface.tokenizers.byte_pair import MODERNBERT_BYTE_PAIR
from keras_transformer.layers import Encoder, EncoderLayer
from keras_transformer.models import ClassificationHead, MaskedLanguageHead, MultipleChoiceHead

MASKED = {"activation": ("classifier_activation", "gelu"), "use_bias": ("classifier_bias", False)}
CLASSES = {**MASKED, "pooling": ("classifier_pooling", "cls")}
THETAS = {FULL: ("global_rope_theta", 160_000.0), SLIDING: ("local_rope_theta", 10_000.0)}
# A window of n sees tokens up to n // 2 away.
WINDOW = 128
MODERNBERT_ROWS = {
    **with_defaults(
        ROWS, vocab_size=50368, num_layers=22, d_ff=1152, pad_id=50283, cls_id=50281, sep_id=50282
    ),
    "activation": ("hidden_activation", "gelu"),
    "dropout": ("embedding_dropout", 0.0),
    "attention_bias": ("attention_bias", False),
    "attention_dropout": ("attention_dropout", 0.0),
    "feed_forward_bias": ("mlp_bias", False),
    "feed_forward_dropout": ("mlp_dropout", 0.0),
    "num_positions": (None, None),
    "max_length": ("max_position_embeddings", 8192),
    "num_segments": (None, 0),
    "layer_norm_epsilon": ("norm_eps", 1e-5),
    "norm_bias": ("norm_bias", False),
    "layer_types": ("layer_types", None),
    "window": ("local_attention", WINDOW),
    "every": ("global_attn_every_n_layers", 3),
    "classifier_dropout": ("classifier_dropout", 0.0),
}
MODERNBERT_PLACES = {
    **PLACES,
    "dropout": "embeddings.dropout",
    "attention_bias": f"{FIRST}.self_attention.use_bias",
    "feed_forward_bias": f"{FIRST}.feed_forward.use_bias",
    "feed_forward_dropout": f"{FIRST}.feed_forward.dropout",
    "layer_norm_epsilon": "embeddings.norm.epsilon",
    "layer_types": lambda model: kinds_of(model.encoder.layers),
    "window": lambda model: 2 * (window_of(model.encoder.layers) or WINDOW // 2 + 1) - 2,
}
LAYER = LayerNames(("attn.Wqkv", "attn.Wo"), ("attn_norm", "mlp_norm"), ("mlp.Wi",), "mlp.Wo")
POOLED = {"pooler": "head.dense", "norm": "head.norm", "rows": CLASSES, "dropout": ("classifier_dropout",)}
SCORES = {"norm": "head.norm", "rows": MASKED, "biases": ("decoder.bias",), "output": "decoder.weight"}
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


class ModernBertFamily(EncoderFamily):
    """ModernBERT, whose layers are those of Llama, but for masks, norms and windows."""

    def _encoder(self, config, arguments, dtype):
        config = {**self.defaults, **config}
        attention = {
            "num_heads": arguments["num_heads"],
            "key_dim": arguments["d_model"] // arguments["num_heads"],
            "use_bias": arguments["attention_bias"],
            "dropout": arguments["attention_dropout"],
        }
        feed_forward = {name: arguments[name] for name in ("d_ff", "activation")}
        feed_forward |= {
            "use_bias": arguments["feed_forward_bias"],
            "dropout": arguments["feed_forward_dropout"],
        }
        norms = {"norm": norm_kind(arguments), "layer_norm_epsilon": arguments["layer_norm_epsilon"]}
        options = {**norms, "first_norm": False, "dropout": 0.0, "dtype": dtype}
        kinds, window = kinds_from(config, layer_types), arguments["window"] // 2 + 1
        places = windows_from(kinds, window), ropes_from(config, kinds, THETAS)
        layers = gated_layers(EncoderLayer, *places, attention, feed_forward, **options)
        return Encoder(layers, dtype=dtype, name="encoder")

    def other_keys(self, model):
        """Returns the keys of config.json for the head, the rotary positions, and the ids under their own names."""
        ids = {"cls_token_id": model.cls_id, "sep_token_id": model.sep_id}
        ropes = rope_keys(self.model_type, model.encoder.layers, self.rows["max_length"][1], THETAS)
        return {**ids, **ropes, **super().other_keys(model)}

    def make_tensors(self, model):
        """Describes the tensors."""
        yield matrix("model.embeddings.tok_embeddings.weight", model.embeddings.tokens.embeddings)
        yield from norm("model.embeddings.norm", model.embeddings.norm)
        for i, layer in enumerate(model.encoder.layers):
            yield from layer_tensors(f"model.layers.{i}.", layer, LAYER)
        yield from norm("model.final_norm", model.encoder.norm)
        yield from self._head_tensors(model)


FAMILY = ModernBertFamily(
    "modernbert",
    HEADS,
    MODERNBERT_BYTE_PAIR,
    "model.",
    rows=MODERNBERT_ROWS,
    places=MODERNBERT_PLACES,
    # Rotary positions have no limit.
    guessed_keys=("max_position_embeddings",),
    more_keys=(
        *(*ENCODER, *ROPE, "layer_types", "layer_norm_eps", "mlp_dropout"),
        *("global_rope_theta", "local_rope_theta"),
    ),
    fixed={"decoder_bias": True, "rope_scaling": None, "tie_word_embeddings": True},
)
