"""What the families of decoders share: Llama and its relatives differ in names and in a few options of their layers."""

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from keras_transformer.checks import check
from keras_transformer.huggingface.configs import ID_PLACES, check_config, read_rows, token_ids
from keras_transformer.huggingface.families.family import TOKEN_PLACES, Family, tokens_in_and_out
from keras_transformer.huggingface.families.gated_layers import (
    FULL,
    SLIDING,
    gated_layers,
    kinds_from,
    kinds_of,
    rope_keys,
    ropes_from,
    ropes_of,
    window_of,
    windows_from,
)
from keras_transformer.huggingface.known_keys import DECODER
from keras_transformer.huggingface.tensors import LayerNames, layer_tensors, matrix, norm
from keras_transformer.layers import Decoder, DecoderLayer, Embeddings, Encoder, EncoderLayer
from keras_transformer.models import EncoderModel, LanguageModel

ROWS = {
    "vocab_size": ("vocab_size", 32000),
    "d_model": ("hidden_size", 4096),
    "tie_embeddings": ("tie_word_embeddings", False),
    "logit_soft_cap": (None, None),
    "num_layers": ("num_hidden_layers", 32),
    "num_heads": ("num_attention_heads", 32),
    "num_key_value_heads": ("num_key_value_heads", None),
    "key_dim": ("head_dim", None),
    "attention_bias": ("attention_bias", False),
    "output_bias": (None, None),
    "query_key_norm": (None, None),
    "norm_over_heads": (None, False),
    "attention_dropout": ("attention_dropout", 0.0),
    "scalar": (None, None),
    "soft_cap": (None, None),
    "d_ff": ("intermediate_size", 11008),
    "activation": ("hidden_act", "silu"),
    "feed_forward_bias": ("mlp_bias", False),
    "dropout": (None, 0.0),
    "norm": (None, "rms"),
    "sandwich_norm": (None, False),
    "input_norm": (None, True),
    "layer_norm_epsilon": ("rms_norm_eps", 1e-6),
    "max_length": ("max_position_embeddings", 2048),
    "pad_id": ("pad_token_id", None),
    "bos_id": ("bos_token_id", 1),
    "eos_id": ("eos_token_id", 2),
}

# The rows that are arguments of each `MultiHeadAttention`, and of each layer, under the same names.
ATTENTION_ROWS = (
    *("num_heads", "num_key_value_heads", "output_bias", "query_key_norm", "norm_over_heads", "soft_cap"),
)
LAYER_ROWS = ("dropout", "norm", "layer_norm_epsilon", "sandwich_norm", "input_norm")


def scalar_of(model):
    """Returns the number whose root divides the scores of attention, an int where it is one."""
    number = model.decoder.layers[0].self_attention.numbers()["scale"] ** -2
    return round(number) if abs(number - round(number)) < 1e-6 * number else number


ATTENTION, FEED_FORWARD = "decoder.layers.0.self_attention", "decoder.layers.0.feed_forward"
PLACES = {
    **TOKEN_PLACES,
    "num_layers": "decoder.num_layers",
    **{name: f"{ATTENTION}.{name}" for name in ("num_heads", "num_key_value_heads", "key_dim", "soft_cap")},
    "attention_bias": f"{ATTENTION}.use_bias",
    "attention_dropout": f"{ATTENTION}.dropout",
    "scalar": scalar_of,
    **{name: f"{FEED_FORWARD}.{name}" for name in ("d_ff", "activation")},
    "feed_forward_bias": f"{FEED_FORWARD}.use_bias",
    "dropout": f"{ATTENTION}_residual.dropout",
    "layer_norm_epsilon": f"{ATTENTION}_residual.layer_norm_epsilon",
    "layer_types": lambda model: kinds_of(model.decoder.layers),
    "sliding_window": lambda model: window_of(model.decoder.layers),
    "uses_window": lambda model: window_of(model.decoder.layers) is not None,
    "rotated": lambda model: [int(rope is not None) for rope in ropes_of(model.decoder.layers)],
    **ID_PLACES,
}
# An `EncoderModel` does not have it.
SCORES = re.compile(r"(^|\.)lm_head\.weight$")
LAYER = LayerNames(
    tuple(f"self_attn.{letter}_proj" for letter in "qkvo"),
    ("input_layernorm", "post_attention_layernorm"),
    ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.down_proj",
)


@dataclass(frozen=True)
class DecoderFamily(Family):
    """A family of decoders: the options in which it differs from Llama.

    Attributes:
        layer_types: `layer_types(config)` gives the kind of each layer where config.json has no `layer_types`; None
            where all layers have a window or none, as `sliding_window` says. Without "layer_types" among the `rows`,
            all layers are of one kind.
        thetas: For each kind of layers with a wavelength of its own, as `rope_of_kind` takes them; None for one
            wavelength.
        names: The `LayerNames` of its layers.
        rotated: `rotated(config)` tells of each layer whether it has rotary positions, a list; None where all have.
        bidirectional: Key of config.json that asks for an `EncoderModel`, in which each token sees the later ones too;
            "" for a family without such models. They are read, not written.
    """

    model_classes: tuple = (LanguageModel,)
    prefix: str = "model."
    rows: dict = field(default_factory=lambda: ROWS)
    places: dict = field(default_factory=lambda: PLACES)
    # `rope_theta` gives these numbers.
    ignored: tuple = (re.compile(r"(^|\.)rotary_emb\.inv_freq$"),)
    # Rotary positions have no limit.
    guessed_keys: tuple = ("max_position_embeddings",)
    layer_types: Callable | None = None
    thetas: dict | None = None
    names: LayerNames = LAYER
    rotated: Callable | None = None
    bidirectional: str = ""
    more_keys: tuple = DECODER

    def sees_later_tokens(self, config):
        """Whether a config.json asks for a model in which each token sees the later ones too."""
        return bool(self.bidirectional and config.get(self.bidirectional))

    def variant(self, config, makes_vectors=False):
        """Returns the family; for vectors, and where tokens see the later ones, one whose models are encoders."""
        sees = self.sees_later_tokens(config)
        if EncoderModel in self.model_classes or not (sees or makes_vectors):
            return self
        kinds = ("TextModel", "Model")  # without scores of ids
        classes = [name.replace("ForCausalLM", kind) for name in self.classes for kind in kinds]
        return dataclasses.replace(
            self,
            model_classes=(EncoderModel,),
            classes=tuple(classes) if sees else (*self.classes, *classes),
            ignored=(*self.ignored, SCORES),
        )

    def make_model(self, config, **kwargs):
        """Makes the model that a config.json describes."""
        arguments, dtype = read_rows(config, self.rows), kwargs.get("dtype")
        encodes = EncoderModel in self.variant(config).model_classes
        layers = self._layers(config, arguments, dtype, EncoderLayer if encodes else DecoderLayer)
        options = {
            "scale": 1.0 if arguments["scalar"] is None else arguments["d_model"] ** 0.5,
            "dropout": 0.0,
        }
        if not encodes:
            options["logit_soft_cap"] = arguments["logit_soft_cap"]
            return LanguageModel(
                **tokens_in_and_out(arguments, dtype, **options),
                decoder=Decoder(layers, dtype=dtype, name="decoder"),
                **token_ids(arguments, **kwargs, several=True),
            )
        ids = {"pad_id": arguments["pad_id"], "cls_id": arguments["bos_id"], "sep_id": arguments["eos_id"]}
        ids = {name: value[0] if isinstance(value, list) else value for name, value in ids.items()}
        return EncoderModel(
            Embeddings(
                arguments["vocab_size"], arguments["d_model"], **options, dtype=dtype, name="embeddings"
            ),
            Encoder(layers, dtype=dtype, name="encoder"),
            **{**ids, **kwargs},
        )

    def _one_kind(self, config):
        """Returns the kinds of layers that all have a window, or none."""
        windows = "sliding_window" in self.rows and config["sliding_window"] is not None
        return [SLIDING if windows else FULL] * config["num_hidden_layers"]

    def _layers(self, config, arguments, dtype, layer_class):
        """Makes the layers that a config.json describes, unbuilt."""
        config = {**self.defaults, **config}
        window = arguments.get("sliding_window")
        again = config.get("sliding_window_size")
        rule = "`sliding_window_size` of config.json must be `sliding_window`, which is the key that is read."
        check(again in (None, window), rule, sliding_window_size=again, sliding_window=window)
        causal = {}
        if layer_class is EncoderLayer and not self.sees_later_tokens(config):
            causal = {"use_causal_mask": True}
        elif layer_class is EncoderLayer and window is not None:
            # Half of it lies before a token, half after it.
            window = window // 2 + 1
        kinds = kinds_from(config, self.layer_types or self._one_kind)
        if "layer_types" not in self.rows:
            # transformers looks at `sliding_window` alone.
            check_config(config, layer_types=self._one_kind(config))
        if not self.bidirectional:
            check_config(config, use_bidirectional_attention=False)
        if self.rows["soft_cap"][0] is None:
            # transformers ignores it.
            check_config(config, attn_logit_softcapping=None)
        attention = {
            **{name: arguments[name] for name in ATTENTION_ROWS},
            "key_dim": arguments["key_dim"] or arguments["d_model"] // arguments["num_heads"],
            "use_bias": bool(arguments["attention_bias"]),
            "dropout": arguments["attention_dropout"],
            "norm_epsilon": arguments["layer_norm_epsilon"],
            "scale": None if arguments["scalar"] is None else arguments["scalar"] ** -0.5,
        }
        feed_forward = {
            "d_ff": arguments["d_ff"],
            "activation": arguments["activation"],
            "use_bias": bool(arguments["feed_forward_bias"]),
        }
        positions = ropes_from(config, kinds, self.thetas)
        if self.rotated:
            pairs = zip(positions, self.rotated(config), strict=True)
            positions = [rope if is_rotated else None for rope, is_rotated in pairs]
        return gated_layers(
            layer_class,
            windows_from(kinds, window),
            positions,
            attention,
            feed_forward,
            dtype=dtype,
            **{name: arguments[name] for name in LAYER_ROWS},
            **causal,
        )

    def other_keys(self, model):
        """Returns the keys of config.json for rotary positions.

        `max_position_embeddings` is the length that the rotary positions are scaled for. They start from the family's
        default where the scaling does not say.
        """
        d_model, num_heads = model.d_model, model.decoder.layers[0].self_attention.num_heads
        rule = f"`d_model` of a {self.model_type!r} model must be divisible by `num_heads`."
        is_scaled = self.rows["scalar"][0] is not None
        check(is_scaled or d_model % num_heads == 0, rule, d_model=d_model, num_heads=num_heads)
        return rope_keys(self.model_type, model.decoder.layers, self.rows["max_length"][1], self.thetas)

    def make_tensors(self, model):
        """Describes the tensors."""
        encodes = isinstance(model, EncoderModel)
        stack = model.encoder if encodes else model.decoder
        yield matrix("model.embed_tokens.weight", model.embeddings.tokens.embeddings)
        if not encodes:
            yield matrix("lm_head.weight", model.output_embedding.embeddings)
        for i, layer in enumerate(stack.layers):
            name, attention = f"model.layers.{i}.", layer.self_attention
            yield from layer_tensors(name, layer, self.names)
            if attention.query_norm is not None:
                yield from norm(f"{name}self_attn.q_norm", attention.query_norm)
                yield from norm(f"{name}self_attn.k_norm", attention.key_norm)
        yield from norm("model.norm", stack.norm)
