"""BERT: Devlin et al., 2019, "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding"."""

import re

from keras_transformer.huggingface.configs import (
    activation,
    activation_name,
    check_config,
    check_parts,
    check_plain_attention,
    check_sizes,
    described_labels,
    head_size,
    labels_of,
    layer_parts,
)
from keras_transformer.huggingface.tensors import matrix, norm, plain, projections, vector
from keras_transformer.huggingface.tokenizers import WORD_PIECE, checked, write_tokenizer_config
from keras_transformer.huggingface.word_piece import word_piece
from keras_transformer.layers import (
    Encoder,
    FeedForward,
    LayerNormalization,
    LearnedPositions,
    MultiHeadAttention,
    Residual,
    SegmentEmbedding,
)
from keras_transformer.models import (
    ClassificationHead,
    EncoderModel,
    MaskedLanguageHead,
    MultipleChoiceHead,
    Pooler,
    TaggingHead,
)

PREFIX = "bert."
BUFFERS = (
    re.compile(r"(^|\.)embeddings\.(position_ids|token_type_ids)$"),  # counted from 0 on; all 0
    # What the published checkpoints keep of their pretraining, beside a head that does not read it.
    re.compile(r"^(bert\.)?pooler\.dense\.(weight|bias)$"),
    re.compile(r"^cls\.seq_relationship\.(weight|bias)$"),
)
# In the first checkpoints.
RENAMED = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
TOKENIZER_FILES = (("tokenizer.json", "vocab.txt"),)
FREE = ()
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
# Their models: our head, and whether there is a pooler.
ARCHITECTURES = {
    "BertModel": (type(None), True),
    "BertForMaskedLM": (MaskedLanguageHead, False),
    "BertForSequenceClassification": (ClassificationHead, True),
    "BertForMultipleChoice": (MultipleChoiceHead, True),
    "BertForTokenClassification": (TaggingHead, False),
}


def model(config, **kwargs):
    """The model that a configuration describes."""
    config = {**DEFAULTS, **config}
    check_config(
        config,
        is_decoder=False,
        add_cross_attention=False,
        position_embedding_type="absolute",
        pruned_heads={},
    )
    vocab_size, d_model, num_layers, num_heads, d_ff, max_length, num_segments = check_sizes(
        config,
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "max_position_embeddings",
        "type_vocab_size",
    )
    dropout, epsilon = config["hidden_dropout_prob"], config["layer_norm_eps"]
    key_dim = head_size(config, "hidden_size", "num_attention_heads")
    attention = MultiHeadAttention(num_heads, key_dim, dropout=config["attention_probs_dropout_prob"])
    head, has_pooler = _head(config)
    # Its configurations do not say which ids these are; ours do, under the names that they have for others.
    ids = {
        ours: config.get(theirs) for ours, theirs in (("cls_id", "bos_token_id"), ("sep_id", "eos_token_id"))
    }
    return EncoderModel(
        vocab_size,
        d_model,
        Encoder(
            num_layers,
            attention=attention,
            feed_forward=FeedForward(d_ff, activation(config, "hidden_act")),
            residual=Residual(dropout, layer_norm_epsilon=epsilon),
        ),
        LearnedPositions(max_length),
        num_segments=num_segments,
        norm=LayerNormalization(epsilon),
        dropout=dropout,
        pooler=Pooler() if has_pooler else None,
        head=head,
        **{"pad_id": config["pad_token_id"], **ids, **kwargs},
    )


def _head(config):
    """The head that `architectures` asks for, and whether there is a pooler."""
    names = config.get("architectures") or ["BertModel"]
    if len(names) != 1 or names[0] not in ARCHITECTURES:
        raise ValueError(
            f"`architectures` of config.json must be one of {list(ARCHITECTURES)}. "
            f"Received: architectures={names}."
        )
    kind, has_pooler = ARCHITECTURES[names[0]]
    dropout = config.get("classifier_dropout")
    dropout = config["hidden_dropout_prob"] if dropout is None else dropout
    if kind is MaskedLanguageHead:
        check_config(config, tie_word_embeddings=True)
        return kind(activation(config, "hidden_act"), config["layer_norm_eps"]), has_pooler
    if kind is MultipleChoiceHead:
        return kind(dropout), has_pooler
    if kind in (ClassificationHead, TaggingHead):
        num_classes, labels = labels_of(config)
        return kind(num_classes, dropout, labels), has_pooler
    return None, has_pooler


def config(model):
    """The configuration that describes a model."""
    check_parts("bert", model=(model, EncoderModel))
    check_parts(
        "bert",
        encoder=(model.encoder, Encoder),
        positions=(model.positions, LearnedPositions),
        segments=(model.segments, SegmentEmbedding),
        norm=(model.norm, LayerNormalization),
    )
    attention, feed_forward, residual = layer_parts("bert", model.encoder, normalize_first=False)
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
        "bos_token_id": model.cls_id,
        "eos_token_id": model.sep_id,
        **_of_head(model, feed_forward, residual.norm),
    }


def _of_head(model, feed_forward, norm):
    """What the configuration says of the head."""
    head = model.head
    kinds = {kind: (name, has_pooler) for name, (kind, has_pooler) in ARCHITECTURES.items()}
    if type(head) not in kinds:
        raise ValueError(
            f"`head` of a 'bert' model must be one of {[kind.__name__ for kind in kinds]}. Received: head={head!r}."
        )
    name, has_pooler = kinds[type(head)]
    check_parts("bert", pooler=(model.pooler, Pooler if has_pooler else None))
    if type(head) is MaskedLanguageHead:
        check_parts(
            "bert",
            head_activation=(head.activation, feed_forward.activation),
            head_epsilon=(head.layer_norm_epsilon, norm.epsilon),
        )
    said = {"architectures": [name]}
    if type(head) in (ClassificationHead, MultipleChoiceHead, TaggingHead):
        said["classifier_dropout"] = head.dropout
    if type(head) in (ClassificationHead, TaggingHead):
        said |= described_labels(head.num_classes, head.labels)
    return said


def tensors(model):
    """The tensors of its checkpoints."""
    embeddings = model.token_embedding
    yield matrix("bert.embeddings.word_embeddings.weight", embeddings.embeddings)
    yield matrix("bert.embeddings.position_embeddings.weight", model.positions.embeddings)
    yield matrix("bert.embeddings.token_type_embeddings.weight", model.segments.embeddings)
    yield from norm("bert.embeddings.LayerNorm", model.norm)
    for i, layer in enumerate(model.encoder.layers):
        name, feed_forward = f"bert.encoder.layer.{i}", layer.feed_forward
        own = [f"{name}.attention.self.{part}" for part in ("query", "key", "value")]
        yield from projections(layer.self_attention, *own, f"{name}.attention.output.dense")
        yield from norm(f"{name}.attention.output.LayerNorm", layer.self_attention_residual.norm)
        yield from plain(f"{name}.intermediate.dense", feed_forward.inner)
        yield from plain(f"{name}.output.dense", feed_forward.outer)
        yield from norm(f"{name}.output.LayerNorm", layer.feed_forward_residual.norm)
    if model.pooler is not None:
        yield from plain("bert.pooler.dense", model.pooler.dense)
    if type(model.head) is MaskedLanguageHead:
        yield from plain("cls.predictions.transform.dense", model.head.dense)
        yield from norm("cls.predictions.transform.LayerNorm", model.head.norm)
        yield vector("cls.predictions.bias", embeddings.bias)
        yield matrix("cls.predictions.decoder.weight", embeddings.embeddings)
        yield vector("cls.predictions.decoder.bias", embeddings.bias)
    elif model.head is not None:
        yield from plain("classifier", model.head.dense)


def tokenizers(folder, config):
    """The tokenizer of a checkpoint's folder."""
    return (word_piece(folder),)


def write_tokenizers(tokenizers, folder, model):
    """The way back: vocab.txt, one piece a line, and tokenizer_config.json."""
    from keras_transformer.text import WordPieceTokenizer  # loads TensorFlow

    (tokenizer,) = checked("bert", tokenizers, WordPieceTokenizer, model)
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces), "utf-8", newline="")
    write_tokenizer_config(
        folder,
        "BertTokenizer",
        WORD_PIECE,
        do_lower_case=tokenizer.lower_case,
        strip_accents=tokenizer.strip_accents,
        model_max_length=model.positions.max_length,
    )
