"""DistilBERT: Sanh et al., 2019, "DistilBERT, a distilled version of BERT: smaller, faster, cheaper and lighter"."""

from keras_transformer.huggingface.families.encoders import ROWS, EncoderFamily
from keras_transformer.huggingface.families.heads import HeadNames
from keras_transformer.huggingface.tensors import LayerNames
from keras_transformer.huggingface.tokenizers.word_piece import WORD_PIECE
from keras_transformer.models import ClassificationHead, MaskedLanguageHead, SpanHead, TaggingHead

DISTILBERT_ROWS = {
    **ROWS,
    "d_model": ("dim", 768),
    "num_layers": ("n_layers", 6),
    "num_heads": ("n_heads", 12),
    "d_ff": ("hidden_dim", 3072),
    "activation": ("activation", "gelu"),
    "dropout": ("dropout", 0.1),
    "attention_dropout": ("attention_dropout", 0.1),
    "num_segments": (None, 0),
    "layer_norm_epsilon": (None, 1e-12),
    "classifier_dropout": ("seq_classif_dropout", 0.2),
    "span_dropout": ("qa_dropout", 0.1),
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
FAMILY = EncoderFamily(
    "distilbert",
    HEADS,
    WORD_PIECE,
    "distilbert.",
    rows=DISTILBERT_ROWS,
    layer="transformer.layer.{}.",
    names=LayerNames(
        tuple(f"attention.{name}_lin" for name in ("q", "k", "v", "out")),
        ("sa_layer_norm", "output_layer_norm"),
        ("ffn.lin1",),
        "ffn.lin2",
    ),
    fixed={"sinusoidal_pos_embds": False},
)
