"""Models that a family cannot describe: they are not written, and the part that differs is named."""

import re

import keras
import pytest
from families import CONFIGS, own_model

from keras_transformer import layers
from keras_transformer.huggingface import FAMILIES, to_huggingface
from keras_transformer.models import (
    T5,
    EncoderDecoder,
    EncoderModel,
    Ensemble,
    LanguageModel,
    MaskedLanguageHead,
    Pooler,
    Transformer,
    VisionTransformer,
)

ONE_FAMILY = "must be made of the parts of one family"
ATTENTION = {
    *("num_heads", "key_dim", "positions", "use_bias", "num_key_value_heads", "value_dim", "sliding_window"),
    *("query_key_norm", "scale", "use_gate"),
}  # fmt: skip


def made(kind, options, cross_attention=None):
    """Makes a layer, or two where an option is a list of two. Each layer gets parts of its own."""
    found = []
    for i in range(1 + any(isinstance(value, list) for value in options.values())):
        own = {key: value[i] if isinstance(value, list) else value for key, value in options.items()}
        attention = {"num_heads": 3, "key_dim": 4} | {key: own.pop(key) for key in ATTENTION & own.keys()}
        if attention.get("positions"):
            attention["positions"] = attention["positions"]()
        if cross_attention is not None:
            own["cross_attention"] = layers.MultiHeadAttention(**{**attention, **cross_attention})
        feed_forward = own.pop("feed_forward")()
        attention = layers.MultiHeadAttention(**attention)
        found.append(kind(attention=attention, feed_forward=feed_forward, dropout=0.0, **own))
    return found


def gpt2_like(layer=layers.DecoderLayer, decoder=layers.Decoder, embedded=layers.LearnedPositions, **changes):
    """A model of GPT-2's parts, but for those given."""
    options = {"feed_forward": PLAIN, "normalize_first": True, **changes}
    embeddings = layers.Embeddings(11, 12, embedded and embedded(5), dropout=0.0)
    return LanguageModel(embeddings, decoder(made(layer, options)))


def llama_like(embedded=None, **changes):
    """A model of Llama's parts, but for those given."""
    parts = {"positions": layers.RotaryPositions, "feed_forward": GATED, "norm": "rms"}
    return gpt2_like(embedded=embedded, **{**parts, **changes})


def marian_like(**changes):
    """A model of Marian's parts, but for those given."""
    parts = {"positions": layers.PositionalEncoding(interleaved=False), "num_heads": 3, "d_ff": 7}
    parts |= {"output_bias": True, "layer_norm_epsilon": 1e-5, **changes}
    return Transformer(11, num_layers=1, d_model=12, **parts)


def stacks_like(cross_attention=None, **changes):
    """A model of Marian's parts, put together of layers, but for the parts given."""
    options = {"feed_forward": PLAIN, "layer_norm_epsilon": 1e-5, **changes}
    encoder = layers.Encoder(made(layers.EncoderLayer, options))
    decoder = layers.Decoder(made(layers.DecoderLayer, options, cross_attention or {}))
    positions = layers.PositionalEncoding(interleaved=False)
    embeddings = layers.Embeddings(11, 12, positions, output_bias=True)
    return EncoderDecoder(embeddings, encoder, embeddings, decoder)


def t5_like(kind=T5, **changes):
    """A model of T5's parts, but for those given."""
    return kind(11, num_layers=1, d_model=12, num_heads=3, key_dim=5, d_ff=7, **changes)


def bert_like(**changes):
    """A model of BERT's parts, but for those given."""
    norm = changes.pop("norm", layers.LayerNormalization(epsilon=1e-6))
    head = changes.pop("head", MaskedLanguageHead("relu", 1e-6))
    embeddings = layers.Embeddings(
        11, 12, layers.LearnedPositions(5), segments=layers.SegmentEmbedding(), norm=norm, output_bias=True
    )
    encoder = layers.Encoder(made(layers.EncoderLayer, {"feed_forward": PLAIN, **changes}))
    return EncoderModel(embeddings, encoder, head=head)


def vit_like(pooler=None, num_classes=None, **changes):
    """A model of ViT's parts, but for those given."""
    options = {"feed_forward": lambda: layers.FeedForward(17, "gelu"), "normalize_first": True, **changes}
    encoder = layers.Encoder(made(layers.EncoderLayer, options))
    return VisionTransformer((6, 10), (2, 5), 12, encoder, num_classes=num_classes, pooler=pooler)


@keras.saving.register_keras_serializable("tests")
class OtherDecoderLayer(layers.DecoderLayer):
    """A layer that may compute what no family's does."""


@keras.saving.register_keras_serializable("tests")
class OtherDecoder(layers.Decoder):
    """A stack whose layers may compute what no family's do."""


@keras.saving.register_keras_serializable("tests")
class OtherT5(T5):
    """A model that may compute what no family's does."""


@keras.saving.register_keras_serializable("tests")
class Tripled(layers.LinearScaling):
    """A scaling that no family has."""


def plain(*arguments, **options):
    return lambda: layers.FeedForward(*arguments, **options)


def gated(*arguments):
    return lambda: layers.GatedFeedForward(*arguments)


PLAIN, GATED = plain(7), gated(7)
ROTARY, ALIBI = layers.RotaryPositions, layers.ALiBi
LAYER_NORM = layers.LayerNormalization
# fmt: off
WRONG_PARTS = [
    # A model, its changed parts, and a part of the message. One row for each kind of part: test_changed_options.py
    # changes each option.
    (gpt2_like, {"feed_forward": GATED}, "feed_forward=<GatedFeedForward"),
    (gpt2_like, {"feed_forward": plain(7, "elu")}, "activation=<function elu"),
    (gpt2_like, {"norm": "rms"}, "norm=<RMSNormalization"),
    (gpt2_like, {"positions": ALIBI}, "positions=<ALiBi"),
    (gpt2_like, {"decoder": OtherDecoder}, "`decoder` of a 'gpt2' model must be a `Decoder`"),
    (gpt2_like, {"layer": OtherDecoderLayer}, "0=<OtherDecoderLayer"),
    (llama_like, {"embedded": layers.PositionalEncoding}, "positions=<PositionalEncoding"),
    (llama_like, {"positions": lambda: ROTARY(scaling=Tripled(3.0))}, "scaling=Tripled(factor=3.0)"),
    (llama_like, {"num_heads": 5}, "d_model=12, num_heads=5"),
    # Parts that only one layer has.
    (gpt2_like, {"scale": [None, 1.0]}, "layers.1.self_attention.scale` of a 'gpt2' model must be 0.5"),
    (llama_like, {"sliding_window": [3, 5]}, "sliding_window=3"),
    # Encoder-decoders.
    (marian_like, {"positions": layers.PositionalEncoding(100.0, False)},
     "`source.positions.max_wavelength` of a 'marian' model must be 10000.0"),
    (stacks_like, {"cross_attention": {"num_heads": 4, "key_dim": 3}}, "cross_attention.num_heads` of a"),
    (t5_like, {"activation": "gelu", "gated": True},
     "must not be the exact GELU. Received: activation='gelu'"),
    # Encoders.
    (bert_like, {"norm": LAYER_NORM(epsilon=1e-6, center=False)}, "center=False"),
    (bert_like, {"head": Pooler()}, "head=<Pooler"),
    # Vision transformers.
    (vit_like, {"pooler": layers.FeedForward(7)}, "pooler=<FeedForward"),
]
# fmt: on
FAMILY_OF = {
    gpt2_like: "gpt2",
    llama_like: "llama",
    marian_like: "marian",
    stacks_like: "marian",
    t5_like: "t5",
}  # fmt: skip
FAMILY_OF |= {bert_like: "bert", vit_like: "vit"}


@pytest.mark.parametrize(
    ("make", "changes", "expected"),
    [pytest.param(*row, id=f"{row[0].__name__}-{row[2][:50]}") for row in WRONG_PARTS],
)
def test_part_that_a_family_does_not_have_is_named(make, changes, expected):
    with pytest.raises(ValueError) as caught:
        FAMILIES[FAMILY_OF[make]].make_config(make(**changes))
    assert expected in str(caught.value)


@pytest.mark.parametrize("make", FAMILY_OF)
def test_model_of_the_parts_of_a_family_is_described(make):
    """What the test above changes is all that is wrong with its models."""
    assert FAMILIES[FAMILY_OF[make]].make_config(make())


def assert_refused(model, expected, folder, match=None, family=None):
    """A model is not written, and the message holds the expected text."""
    match = match or (f"must be made of the parts of a {family!r} model" if family else ONE_FAMILY)
    with pytest.raises(ValueError, match=match) as caught:
        to_huggingface(model, folder / "new", family=family)
    assert expected in str(caught.value)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("family", [None, "gpt2"])
def test_model_of_no_family_is_not_written(family, tmp_path):
    expected = "normalize_first` of a 'gpt2' model must be True. Received: normalize_first=False"
    assert_refused(gpt2_like(normalize_first=False), expected, tmp_path, family=family)


@pytest.mark.parametrize(
    ("family", "classes"),
    [
        ("gpt2", "['LanguageModel']"),
        ("llama", "['LanguageModel']"),
        ("marian", "['EncoderDecoder', 'Transformer']"),
    ],
)
def test_model_of_another_kind_is_refused(family, classes, tmp_path):
    message = (
        f"`model` of a {family!r} model must be of one of the classes {classes} itself, not of a subclass"
    )
    assert_refused(keras.Sequential(), "model=<Seq", tmp_path, match=re.escape(message), family=family)


def test_subclass_of_the_model_of_a_family_is_refused(tmp_path):
    message = r"must be of one of the classes \['T5'\] itself, not of a subclass"
    assert_refused(t5_like(kind=OtherT5), "model=<OtherT5", tmp_path, match=message, family="t5")


def test_class_of_no_family_is_refused_in_one_sentence(tmp_path):
    model = Ensemble([marian_like(), marian_like()])
    message = (
        r"^`model` must be of one of the classes \['EncoderDecoder', .*\. Received: model=<Ensemble[^.]*\.$"
    )
    assert_refused(model, "'T5', 'Transformer'", tmp_path, match=message)


def test_reasons_of_other_classes_are_left_out(tmp_path):
    with pytest.raises(ValueError, match=ONE_FAMILY) as caught:
        to_huggingface(llama_like(norm="layer"), tmp_path / "new")
    assert "'bert'" not in str(caught.value) and "'marian'" not in str(caught.value)


def test_quantized_model_is_refused(tmp_path):
    model = gpt2_like()
    model.quantize("int8")
    message = "`model` must not be quantized. Received: "
    assert_refused(model, message, tmp_path, match="must not be quantized")


@pytest.mark.parametrize(
    ("family", "case", "expected"),
    [
        ("mistral", "gemma2", "`embeddings.tokens.scale` of a"),
        ("bart", "mbart", "normalize_first"),
        ("m2m_100", "mbart", "output_bias"),
        ("bird", "roberta-Model", "`family` must be one of "),
        ("bert", "roberta-Model", "`embeddings.positions.max_length` of a"),
    ],
)
def test_model_of_another_family_is_refused(family, case, expected, tmp_path):
    few = {"num_hidden_layers": 1, "encoder_layers": 1, "max_position_embeddings": 5}
    changes = {key: value for key, value in few.items() if key in CONFIGS[case]}
    assert_refused(own_model({**CONFIGS[case], **changes}), expected, tmp_path, "`family`|", family)
