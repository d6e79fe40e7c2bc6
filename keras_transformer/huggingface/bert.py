"""BERT: Devlin et al., 2019, "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding"."""

import re

from keras_transformer.huggingface.configs import (
    activation_from,
    activation_name,
    check_config,
    check_divisible,
    check_layers,
    check_norm,
    check_parts,
    check_plain_attention,
    label_keys,
    labels_of,
    sizes_of,
)
from keras_transformer.huggingface.family import Family
from keras_transformer.huggingface.tensors import attention_projections, dense, matrix, norm, vector
from keras_transformer.huggingface.tokenizers import (
    WORD_PIECE_TOKENS,
    check_tokenizers,
    write_tokenizer_config,
)
from keras_transformer.huggingface.word_piece import read_word_piece
from keras_transformer.layers import Encoder, LayerNormalization, LearnedPositions, SegmentEmbedding
from keras_transformer.models import (
    ClassificationHead,
    EncoderModel,
    MaskedLanguageHead,
    MultipleChoiceHead,
    Pooler,
    TaggingHead,
)

DEFAULTS = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
}
# For each class of transformers the class of the head, and whether there is a pooler.
ARCHITECTURES = {
    "BertModel": (type(None), True),
    "BertForMaskedLM": (MaskedLanguageHead, False),
    "BertForSequenceClassification": (ClassificationHead, True),
    "BertForMultipleChoice": (MultipleChoiceHead, True),
    "BertForTokenClassification": (TaggingHead, False),
}
# BERT's config.json knows no ids of [CLS] and [SEP]. `make_config` writes them at the keys of other models.
ID_KEYS = {"cls_id": "bos_token_id", "sep_id": "eos_token_id"}


def make_model(config, **kwargs):
    """Makes the model that a config.json describes."""
    config = {**DEFAULTS, **config}
    check_config(
        config,
        is_decoder=False,
        add_cross_attention=False,
        position_embedding_type="absolute",
        pruned_heads={},
    )
    vocab_size, d_model, num_layers, num_heads, d_ff, max_length, num_segments = sizes_of(
        config,
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "max_position_embeddings",
        "type_vocab_size",
    )
    check_divisible(config, "hidden_size", "num_attention_heads")
    dropout, epsilon, dtype = config["hidden_dropout_prob"], config["layer_norm_eps"], kwargs.get("dtype")
    encoder = Encoder(
        num_layers,
        num_heads,
        d_ff,
        dropout,
        activation_from(config, "hidden_act"),
        layer_norm_epsilon=epsilon,
        attention_dropout=config["attention_probs_dropout_prob"],
        dtype=dtype,
        name="encoder",
    )
    head, has_pooler = _head(config, dtype)
    return EncoderModel(
        vocab_size,
        d_model,
        encoder,
        LearnedPositions(max_length, dtype=dtype, name="positions"),
        num_segments=num_segments,
        norm=LayerNormalization(epsilon=epsilon, dtype=dtype, name="norm"),
        dropout=dropout,
        pooler=Pooler(dtype=dtype, name="pooler") if has_pooler else None,
        head=head,
        **{
            "pad_id": config["pad_token_id"],
            **{name: config.get(key) for name, key in ID_KEYS.items()},
            **kwargs,
        },
    )


def _head(config, dtype):
    """Returns the head that `architectures` asks for, or None, and whether there is a pooler."""
    names = config.get("architectures") or ["BertModel"]
    if len(names) != 1 or names[0] not in ARCHITECTURES:
        raise ValueError(
            f"`architectures` of config.json must be one of {list(ARCHITECTURES)}. "
            f"Received: architectures={names}."
        )
    head_class, has_pooler = ARCHITECTURES[names[0]]
    dropout = config.get("classifier_dropout")
    dropout = config["hidden_dropout_prob"] if dropout is None else dropout
    keras_arguments = {"dtype": dtype, "name": "head"}
    head = None
    if head_class is MaskedLanguageHead:
        check_config(config, tie_word_embeddings=True)
        activation = activation_from(config, "hidden_act")
        head = MaskedLanguageHead(activation, config["layer_norm_eps"], **keras_arguments)
    elif head_class is MultipleChoiceHead:
        head = MultipleChoiceHead(dropout, **keras_arguments)
    elif head_class in (ClassificationHead, TaggingHead):
        num_classes, labels = labels_of(config)
        head = head_class(num_classes, dropout, labels, **keras_arguments)
    return head, has_pooler


def make_config(model):
    """Makes the config.json of a model."""
    check_parts("bert", model=(model, EncoderModel))
    check_parts(
        "bert",
        encoder=(model.encoder, Encoder),
        positions=(model.positions, LearnedPositions),
        segments=(model.segments, SegmentEmbedding),
    )
    check_norm("bert", model.norm)
    attention, feed_forward, residual = check_layers("bert", model.encoder, normalize_first=False)
    check_plain_attention("bert", attention, model.d_model)
    check_parts(
        "bert",
        feed_forward_bias=(feed_forward.use_bias, True),
        epsilon=(model.norm.epsilon, residual.norm.epsilon),
    )
    return {
        "model_type": "bert",
        "vocab_size": model.vocab_size,
        "hidden_size": model.d_model,
        "num_hidden_layers": model.encoder.num_layers,
        "num_attention_heads": attention.num_heads,
        "intermediate_size": feed_forward.d_ff,
        "hidden_act": activation_name("bert", feed_forward),
        "hidden_dropout_prob": residual.dropout,
        "attention_probs_dropout_prob": attention.dropout,
        "max_position_embeddings": model.positions.max_length,
        "type_vocab_size": model.num_segments,
        "layer_norm_eps": residual.norm.epsilon,
        "pad_token_id": model.pad_id,
        **{key: getattr(model, name) for name, key in ID_KEYS.items()},
        **_head_keys(model, feed_forward, residual.norm),
    }


def _head_keys(model, feed_forward, norm):
    """Returns the keys of config.json for a model's head."""
    head = model.head
    architectures = {kind: (name, has_pooler) for name, (kind, has_pooler) in ARCHITECTURES.items()}
    if type(head) not in architectures:
        names = [kind.__name__ for kind in architectures]
        raise ValueError(f"`head` of a 'bert' model must be one of {names}. Received: head={head!r}.")
    name, has_pooler = architectures[type(head)]
    check_parts("bert", pooler=(model.pooler, Pooler if has_pooler else None))
    if type(head) is MaskedLanguageHead:
        check_parts(
            "bert",
            head_activation=(head.activation, feed_forward.activation),
            head_epsilon=(head.layer_norm_epsilon, norm.epsilon),
        )
    keys = {"architectures": [name]}
    if type(head) in (ClassificationHead, MultipleChoiceHead, TaggingHead):
        keys["classifier_dropout"] = head.dropout
    if type(head) in (ClassificationHead, TaggingHead):
        keys |= label_keys(head.num_classes, head.labels)
    return keys


def make_tensors(model):
    """Describes the tensors."""
    embeddings = model.token_embedding
    yield matrix("bert.embeddings.word_embeddings.weight", embeddings.embeddings)
    yield matrix("bert.embeddings.position_embeddings.weight", model.positions.embeddings)
    yield matrix("bert.embeddings.token_type_embeddings.weight", model.segments.embeddings)
    yield from norm("bert.embeddings.LayerNorm", model.norm)
    for i, layer in enumerate(model.encoder.layers):
        name = f"bert.encoder.layer.{i}"
        names = [f"{name}.attention.self.{part}" for part in ("query", "key", "value")]
        yield from attention_projections(layer.self_attention, *names, f"{name}.attention.output.dense")
        yield from norm(f"{name}.attention.output.LayerNorm", layer.self_attention_residual.norm)
        yield from dense(f"{name}.intermediate.dense", layer.feed_forward.inner)
        yield from dense(f"{name}.output.dense", layer.feed_forward.outer)
        yield from norm(f"{name}.output.LayerNorm", layer.feed_forward_residual.norm)
    if model.pooler is not None:
        yield from dense("bert.pooler.dense", model.pooler.dense)
    if type(model.head) is MaskedLanguageHead:
        yield from dense("cls.predictions.transform.dense", model.head.dense)
        yield from norm("cls.predictions.transform.LayerNorm", model.head.norm)
        yield vector("cls.predictions.bias", embeddings.bias)
        yield matrix("cls.predictions.decoder.weight", embeddings.embeddings)
        yield vector("cls.predictions.decoder.bias", embeddings.bias)
    elif model.head is not None:
        yield from dense("classifier", model.head.dense)


def read_tokenizers(folder):
    """Reads the tokenizer of a folder."""
    return (read_word_piece(folder),)


def write_tokenizers(tokenizers, folder, model):
    """Writes vocab.txt, with one piece in a line, and tokenizer_config.json."""
    from keras_transformer.text import WordPieceTokenizer  # loads TensorFlow

    (tokenizer,) = check_tokenizers("bert", tokenizers, WordPieceTokenizer, model)
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces), "utf-8", newline="")
    write_tokenizer_config(
        folder,
        "BertTokenizer",
        WORD_PIECE_TOKENS,
        do_lower_case=tokenizer.lower_case,
        strip_accents=tokenizer.strip_accents,
        model_max_length=model.positions.max_length,
    )


FAMILY = Family(
    "bert",
    make_model,
    make_config,
    make_tensors,
    prefix="bert.",
    ignored=(
        # Positions, counted from 0, and segments, all 0.
        re.compile(r"(^|\.)embeddings\.(position_ids|token_type_ids)$"),
        # Published checkpoints keep parts of their pretraining beside a head that does not read them.
        re.compile(r"^(bert\.)?pooler\.dense\.(weight|bias)$"),
        re.compile(r"^cls\.seq_relationship\.(weight|bias)$"),
    ),
    renamed={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
    tokenizer_files=(("tokenizer.json", "vocab.txt"),),
    read_tokenizers=read_tokenizers,
    write_tokenizers=write_tokenizers,
)
