"""A tiny BERT, and its folder of Hugging Face."""

from contracts import randomized

from keras_transformer.huggingface import to_huggingface
from keras_transformer.layers import (
    Embeddings,
    Encoder,
    LayerNormalization,
    LearnedPositions,
    SegmentEmbedding,
)
from keras_transformer.models import EncoderModel, Pooler


def new_bert(head=None, vocab_size=260, d_model=8, positions=40, encoder=None, **ids):
    """Returns a model with the weights of its initializers."""
    embeddings = Embeddings(
        vocab_size, d_model, LearnedPositions(positions), segments=SegmentEmbedding(),
        norm=LayerNormalization(epsilon=1e-12), output_bias=getattr(head, "scores_ids", False),
    )  # fmt: skip
    encoder = encoder or Encoder(1, 2, 16, dropout=0.0, activation="gelu", layer_norm_epsilon=1e-12)
    return EncoderModel(embeddings, encoder, head=head, pooler=Pooler(), **ids)


def bert(*args, **kwargs):
    """Returns a model whose weights tell texts apart."""
    return randomized(new_bert(*args, **kwargs), scale=0.3)


def ids_of(tokenizer):
    return {name: getattr(tokenizer, name) for name in ("pad_id", "cls_id", "sep_id")}


def write_bert(model, tokenizer, folder):
    """Writes the folder of Hugging Face of a model and its word pieces."""
    to_huggingface(model, folder)
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")
    return folder
