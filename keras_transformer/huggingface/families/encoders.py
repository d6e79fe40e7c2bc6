"""What the families of encoders share: BERT and its relatives differ in names, heads and a few keys."""

import re
from dataclasses import dataclass, field

from keras_transformer.checks import check
from keras_transformer.huggingface.configs import (
    MULTI_LABEL,
    check_config,
    check_divisible,
    is_multi_label,
    label_keys,
    labels_of,
    read_rows,
    written_rows,
)
from keras_transformer.huggingface.families.family import Family
from keras_transformer.huggingface.files import CONFIG
from keras_transformer.huggingface.known_keys import ENCODER
from keras_transformer.huggingface.tensors import LayerNames, dense, layer_tensors, matrix, norm, vector
from keras_transformer.layers import (
    Embeddings,
    Encoder,
    EncoderLayer,
    LayerNormalization,
    LearnedPositions,
    MultiHeadAttention,
    RelativePositionBias,
    SegmentEmbedding,
)
from keras_transformer.models import (
    ClassificationHead,
    EncoderModel,
    MaskedLanguageHead,
    MultipleChoiceHead,
    Pooler,
    ProjectedPooler,
    SpanHead,
    TaggingHead,
)

ROWS = {
    "vocab_size": ("vocab_size", 30522),
    "d_model": ("hidden_size", 768),
    "embedding_dim": (None, None),
    "num_layers": ("num_hidden_layers", 12),
    "num_heads": ("num_attention_heads", 12),
    "num_buckets": (None, None),
    "d_ff": ("intermediate_size", 3072),
    "activation": ("hidden_act", "gelu"),
    "dropout": ("hidden_dropout_prob", 0.1),
    "attention_dropout": ("attention_probs_dropout_prob", 0.1),
    "num_positions": ("max_position_embeddings", 512),
    "num_segments": ("type_vocab_size", 2),
    "layer_norm_epsilon": ("layer_norm_eps", 1e-12),
    "norm_bias": (None, True),
    "pad_id": ("pad_token_id", 0),
    # BERT's config.json knows neither [CLS] nor [SEP]. They are written at the keys of other models.
    "cls_id": ("bos_token_id", None),
    "sep_id": ("eos_token_id", None),
}
STACK = (
    "num_layers",
    "num_heads",
    "d_ff",
    "activation",
    "dropout",
    "attention_dropout",
    "layer_norm_epsilon",
)
FIRST = "encoder.layers.0"
STACK_PLACES = {
    "num_layers": "encoder.num_layers",
    "num_heads": f"{FIRST}.self_attention.num_heads",
    "d_ff": f"{FIRST}.feed_forward.d_ff",
    "activation": f"{FIRST}.feed_forward.activation",
    "attention_dropout": f"{FIRST}.self_attention.dropout",
    "layer_norm_epsilon": f"{FIRST}.self_attention_residual.layer_norm_epsilon",
}
PLACES = {
    **STACK_PLACES,
    "dropout": "embeddings.dropout",
    "embedding_dim": "embeddings.tokens.output_dim",
    "num_buckets": f"{FIRST}.self_attention.positions.num_buckets",
    "num_positions": "embeddings.positions.embeddings.shape.0",
    "num_segments": "embeddings.segments.num_segments",
    "norm_bias": "embeddings.norm.center",
}
# The names of the tensors of BERT's layers.
LAYER = LayerNames(
    tuple(f"attention.{name}" for name in ("self.query", "self.key", "self.value", "output.dense")),
    ("attention.output.LayerNorm", "output.LayerNorm"),
    ("intermediate.dense",),
    "output.dense",
)
# Positions from 0 on, and segments, all 0.
COUNTED = re.compile(r"(^|\.)embeddings\.(position_ids|token_type_ids)$")
# How many ids of [SEP] the tokenizers put between the texts of a pair that are not the usual ones of a family.
SEPARATORS = {"BertTokenizer": 1, "XLMRobertaTokenizer": 2}


@dataclass(frozen=True)
class EncoderFamily(Family):
    """A family of encoders: the options in which it differs from BERT. `classes` is a dict of `HeadNames`.

    Of several classes with the same head, the first is written.

    Attributes:
        layer: Beginning of the names of a layer's tensors, with `{}` for its number.
        names: The `LayerNames` of its layers.
        fixed: Keys of config.json that must have one value.
        offset: Whether positions begin after the id of padding, as in RoBERTa.
        separators: How many ids of `[SEP]` stand between the texts of a pair.
        biases: Name of the table of relative biases; "" for a family without one.
        widened: Name of the dense layer between embeddings and layers; "" for a family without one.
    """

    rows: dict = field(default_factory=lambda: ROWS)
    places: dict = field(default_factory=lambda: PLACES)
    model_classes: tuple = (EncoderModel,)
    ignored: tuple = (COUNTED,)
    layer: str = "encoder.layer.{}."
    names: LayerNames = LAYER
    fixed: dict = field(default_factory=dict)
    offset: bool = False
    separators: int = 1
    biases: str = ""
    widened: str = ""
    more_keys: tuple = ENCODER

    def arguments_of_tensors(self, config, names):
        """Returns `{"pooler": None}` where no tensor is the pooler's, as in some checkpoints without a head."""
        head = self.heads_of(config)
        stored = head.pooler and any(f"{head.pooler}.weight".endswith(name) for name in names)
        return {} if stored or head.kind is not type(None) else {"pooler": None}

    @property
    def known_keys(self):
        """The keys of config.json that are read or have no effect, a set of str."""
        heads = self.classes.values()
        dropouts = {key for head in heads for key in head.dropout or ()}
        return {
            *super().known_keys,
            *self.fixed,
            *dropouts,
            *(key for head in heads for key, _ in head.rows.values()),
        }

    def heads_of(self, config):
        """Returns the `HeadNames` that `architectures` of config.json asks for."""
        self.check_classes(config)
        return self.classes[(config.get("architectures") or self.architectures)[0]]

    def make_model(self, config, **kwargs):
        """Makes the model that a config.json describes."""
        arguments, dtype = read_rows(config, self.rows), kwargs.get("dtype")
        check_config(
            config,
            is_decoder=False,
            add_cross_attention=False,
            position_embedding_type="absolute",
            pruned_heads={},
            **self.fixed,
        )
        check_divisible(arguments, self.rows)
        pad_id, epsilon = arguments["pad_id"], arguments["layer_norm_epsilon"]
        check(isinstance(pad_id, int), "`pad_token_id` of config.json must be one id.", pad_token_id=pad_id)
        norm = LayerNormalization(epsilon=epsilon, center=arguments["norm_bias"], dtype=dtype, name="norm")
        head, segments = self._head(config, arguments, dtype), None
        if arguments["num_segments"]:
            segments = SegmentEmbedding(arguments["num_segments"], dtype=dtype, name="segments")
        embeddings = Embeddings(
            arguments["vocab_size"],
            arguments["d_model"],
            self._positions(arguments, dtype),
            segments=segments,
            norm=norm,
            dropout=arguments["dropout"],
            embedding_dim=other_width(arguments),
            output_bias=head is not None and head.scores_ids,
            dtype=dtype,
            name="embeddings",
        )
        return EncoderModel(
            **{
                "embeddings": embeddings,
                **{name: arguments[name] for name in ("pad_id", "cls_id", "sep_id")},
                "encoder": self._encoder(config, arguments, dtype),
                "pooler": self._pooler(config, arguments, dtype),
                "head": head,
                "num_separators": SEPARATORS.get(config.get("tokenizer_class"), self.separators),
                **kwargs,
            }
        )

    def _positions(self, arguments, dtype):
        if arguments["num_positions"] is None:
            return None
        offset = arguments["pad_id"] + 1 if self.offset else 0
        return LearnedPositions(arguments["num_positions"] - offset, offset, dtype=dtype, name="positions")

    def _encoder(self, config, arguments, dtype):
        stack = {name: arguments[name] for name in STACK}
        if not self.biases:
            return Encoder(**stack, dtype=dtype, name="encoder")
        num_layers, num_heads, dropout = (
            stack.pop(name) for name in ("num_layers", "num_heads", "attention_dropout")
        )
        attention = {
            "num_heads": num_heads,
            "key_dim": arguments["d_model"] // num_heads,
            "dropout": dropout,
            "positions": RelativePositionBias(
                num_heads, arguments["num_buckets"], dtype=dtype, name="biases"
            ),
        }
        layers = [
            EncoderLayer(
                attention=MultiHeadAttention(**attention, dtype=dtype, name="self_attention"),
                **stack,
                dtype=dtype,
                name=f"layer_{i}",
            )
            for i in range(num_layers)
        ]
        return Encoder(layers, dtype=dtype, name="encoder")

    def _pooler(self, config, arguments, dtype):
        names = self.heads_of(config)
        if names.pooler is None:
            return None
        options = {"activation": names.pooler_activation, **read_rows(config, names.rows)}
        if names.norm:
            options |= {"norm": norm_kind(arguments), "layer_norm_epsilon": arguments["layer_norm_epsilon"]}
        dropout = self._head_dropout(config, names) if names.pooler_drops else 0.0
        return Pooler(dropout=dropout, **options, dtype=dtype, name="pooler")

    def _head_dropout(self, config, names):
        config = {**self.defaults, **config}
        given = [config[key] for key in names.dropout or () if config.get(key) is not None]
        return given[0] if given else 0.0

    def _head(self, config, arguments, dtype):
        names, options = self.heads_of(config), {"dtype": dtype, "name": "head"}
        if names.kind is type(None):
            return None
        if names.kind is MaskedLanguageHead:
            check_config(config, tie_word_embeddings=True)
            own = read_rows(config, {"activation": self.rows["activation"], **names.rows})
            own |= {} if names.activation is None else {"activation": names.activation}
            norm = {"norm": norm_kind(arguments), "layer_norm_epsilon": arguments["layer_norm_epsilon"]}
            return MaskedLanguageHead(width=other_width(arguments), **norm, **own, **options)
        dropout = self._head_dropout(config, names)
        if names.kind in (MultipleChoiceHead, SpanHead):
            return names.kind(dropout, **options)
        if names.kind is ClassificationHead:
            num_classes, labels = labels_of(config, (MULTI_LABEL,))
            return ClassificationHead(num_classes, dropout, labels, is_multi_label(config), **options)
        # transformers ignores `problem_type` in a head for tags.
        num_classes, labels = labels_of({**config, "problem_type": None})
        return TaggingHead(num_classes, dropout, labels, **options)

    def with_labels(self, model, config, kind, labels):
        """Returns a model with copies of these weights under a new head for labels, and the pooler before it.

        Args:
            model: The `EncoderModel`.
            config: Its config.json, a dict.
            kind: `ClassificationHead` or `TaggingHead`.
            labels: List of str.

        Raises:
            ValueError: If the family has no class with such a head.
        """
        found = [name for name, names in self.classes.items() if names.kind is kind]
        rule = f"The `folder` of a new {kind.__name__} must hold a model whose family has one, not {self.model_type!r}."
        check(found, rule, classes=list(self.classes))
        names, config = self.classes[found[0]], {**config, "architectures": found[:1]}
        pooler = self._pooler(config, read_rows(config, self.rows), None)
        return model.with_head(kind(len(labels), self._head_dropout(config, names), labels), pooler)

    def other_keys(self, model):
        """Returns the keys of config.json for a model's head and pooler."""
        head, pooler, (name, names) = model.head, pooler_of(model), self._names_of(model)
        keys = {"architectures": [name]}
        keys |= written_rows(self.model_type, head if pooler is None else pooler, names.rows)
        if names.dropout and names.dropout[0] != self.rows["dropout"][0]:
            keys[names.dropout[0]] = head.dropout
        if names.kind in (ClassificationHead, TaggingHead):
            keys |= label_keys(head.num_classes, head.labels)
        if getattr(head, "multi_label", False):
            keys["problem_type"] = MULTI_LABEL
        return keys

    def numbers_of(self, model):
        """Returns what decides the numbers of a model, but for Dense modules, which have files of their own."""
        return {**super().numbers_of(model), "pooler": pooler_of(model)}

    def make_again(self, config, model):
        """Makes a model from the config.json of another one, which does not say whether there is a pooler."""
        was_read = model.checkpoint_files.get(CONFIG, {}).get("model_type") == self.model_type
        # transformers would make a pooler of its own and warn of it: not for a model that another family describes.
        has_none = model.head is None and pooler_of(model) is None and (was_read or model.pooler is not None)
        return self.make_model(config, **({"pooler": None} if has_none else {}))

    def _names_of(self, model):
        """Returns the class of transformers for a model's head, and its `HeadNames`."""
        head = model.head
        for name, names in self.classes.items():
            if type(head) is names.kind:
                return name, names
        kinds = list(dict.fromkeys(names.kind.__name__ for names in self.classes.values()))
        raise ValueError(
            f"`head` of a {self.model_type!r} model must be one of {kinds}. Received: head={head!r}."
        )

    def make_tensors(self, model):
        """Describes the tensors."""
        parts, name = model.embeddings, f"{self.prefix}embeddings"
        yield matrix(f"{name}.word_embeddings.weight", parts.tokens.embeddings)
        yield matrix(f"{name}.position_embeddings.weight", parts.positions.embeddings)
        if parts.segments is not None:
            yield matrix(f"{name}.token_type_embeddings.weight", parts.segments.embeddings)
        yield from norm(f"{name}.LayerNorm", parts.norm)
        if parts.widen is not None:
            yield from dense(self.widened, parts.widen)
        if self.biases:
            yield matrix(self.biases, model.encoder.layers[0].self_attention.positions.embeddings)
        for i, layer in enumerate(model.encoder.layers):
            yield from layer_tensors(self.prefix + self.layer.format(i), layer, self.names)
        yield from self._head_tensors(model)

    def _head_tensors(self, model):
        _, names = self._names_of(model)
        pooler = pooler_of(model)
        if pooler is not None:
            yield from dense(names.pooler, pooler.dense)
            if pooler.norm is not None:
                yield from norm(names.norm, pooler.norm)
        if model.head is not None:
            yield from dense(names.dense, model.head.dense)
        if type(model.head) is MaskedLanguageHead:
            yield from norm(names.norm, model.head.norm)
            tokens = model.embeddings.tokens
            yield from (vector(name, tokens.bias) for name in names.biases)
            yield matrix(names.output, tokens.embeddings)


def pooler_of(model):
    """Returns the pooler of a model that config.json describes, or None."""
    return None if isinstance(model.pooler, ProjectedPooler) else model.pooler


def norm_kind(arguments):
    """Returns the name of the norms."""
    return "layer" if arguments["norm_bias"] else "layer_without_bias"


def other_width(arguments):
    """Returns the width of the embeddings where it is another one than that of the model, an int or None."""
    width = arguments["embedding_dim"]
    return None if width == arguments["d_model"] else width
