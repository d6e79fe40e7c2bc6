"""DistilBERT: Sanh et al., 2019, "DistilBERT, a distilled version of BERT: smaller, faster, cheaper and lighter"."""

from keras_transformer.huggingface.encoder_words import HeadNames
from keras_transformer.huggingface.encoders import EncoderNames, encoder_family
from keras_transformer.huggingface.word_piece import WORD_PIECE
from keras_transformer.models import ClassificationHead, MaskedLanguageHead, SpanHead, TaggingHead

KEYS = {
    "vocab_size": "vocab_size",
    "d_model": "dim",
    "num_layers": "n_layers",
    "num_heads": "n_heads",
    "d_ff": "hidden_dim",
    "activation": "activation",
    "dropout": "dropout",
    "attention_dropout": "attention_dropout",
    "positions": "max_position_embeddings",
}
DEFAULTS = {
    "vocab_size": 30522,
    "dim": 768,
    "n_layers": 6,
    "n_heads": 12,
    "hidden_dim": 3072,
    "activation": "gelu",
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "max_position_embeddings": 512,
    "seq_classif_dropout": 0.2,
    "qa_dropout": 0.1,
    "pad_token_id": 0,
}
HEADS = {
    "DistilBertModel": HeadNames(),
    "DistilBertForMaskedLM": HeadNames(
        MaskedLanguageHead,
        "vocab_transform",
        norm="vocab_layer_norm",
        biases=("vocab_projector.bias",),
        output="vocab_projector.weight",
    ),
    "DistilBertForSequenceClassification": HeadNames(
        ClassificationHead, "classifier", "pre_classifier", "relu", dropout=("seq_classif_dropout",)
    ),
    "DistilBertForTokenClassification": HeadNames(TaggingHead, "classifier", dropout=("dropout",)),
    "DistilBertForQuestionAnswering": HeadNames(SpanHead, "qa_outputs", dropout=("qa_dropout",)),
}
FAMILY = encoder_family(
    EncoderNames(
        "distilbert",
        HEADS,
        "distilbert.",
        layer="transformer.layer.{}.",
        projections=tuple(f"attention.{name}_lin" for name in ("q", "k", "v", "out")),
        attention_norm="sa_layer_norm",
        inner="ffn.lin1",
        outer="ffn.lin2",
        norm="output_layer_norm",
        keys=KEYS,
        defaults=DEFAULTS,
        fixed={"sinusoidal_pos_embds": False},
    ),
    WORD_PIECE,
)
