"""Models that read texts, each with its tokenizer, whose special ids count."""

from keras_transformer.huggingface.chat import chat_template_from_huggingface
from keras_transformer.huggingface.checkpoint import Checkpoint, from_huggingface, tokenizers_from_huggingface
from keras_transformer.huggingface.families import DECODERS
from keras_transformer.huggingface.tokenizers.kinds import starts_with_bos, with_ends
from keras_transformer.text import SentencePieceTokenizer, WordPieceTokenizer
from keras_transformer.text.word_piece import SPECIAL

READERS = (from_huggingface, tokenizers_from_huggingface)


def read_encoder(folder, readers=READERS, **kwargs):
    """Reads an `EncoderModel` and its tokenizer. transformers reads no other ids than the tokenizer's.

    Args:
        folder: A `pathlib.Path`.
        readers: What reads the model and the tokenizers, as `READERS`.
        **kwargs: Other arguments of `from_huggingface`.
    """
    from_huggingface, tokenizers_from_huggingface = readers
    (tokenizer,) = tokenizers_from_huggingface(folder)
    starts = True
    if Checkpoint(folder).family.model_type in DECODERS:
        tokenizer, starts = with_ends(tokenizer, folder)
    ids = {"pad_id": tokenizer.pad_id, "cls_id": tokenizer.bos_id, "sep_id": tokenizer.eos_id}
    ids["starts_with_cls"] = starts
    if isinstance(tokenizer, WordPieceTokenizer) and tokenizer.special_tokens == SPECIAL:
        ids["num_separators"] = 1
    elif isinstance(tokenizer, SentencePieceTokenizer):
        ids["num_separators"] = 2
    return from_huggingface(folder, **{**ids, **kwargs}), tokenizer


def read_language_model(folder, readers=READERS, *, chat=False, **kwargs):
    """Reads a `LanguageModel` and its tokenizer.

    Args:
        folder: A `pathlib.Path`.
        readers: What reads the model and the tokenizers, as `READERS`.
        chat: Whether its texts come from its `ChatTemplate`, whose special tokens then get their ids.
        **kwargs: Other arguments of `from_huggingface`.

    Returns:
        The model; the tokenizer; whether its texts begin with bos; and the `ChatTemplate`, or None.
    """
    from_huggingface, tokenizers_from_huggingface = readers
    checkpoint, (tokenizer,) = Checkpoint(folder), tokenizers_from_huggingface(folder)
    starts, template = starts_with_bos(folder, checkpoint.family.tokenizer, tokenizer.bos_id), None
    if chat:
        template = chat_template_from_huggingface(folder)
        tokenizer, starts = template.with_special_tokens(tokenizer), template.starts_with_bos
    # Of several ids of an end, the tokenizer's is that of a text. config.json seldom names the id for padding.
    eos_id = tokenizer.eos_id
    ids = {"eos_id": eos_id} if eos_id in checkpoint.stop_ids else {}
    if tokenizer.pad_id is not None:
        ids["pad_id"] = tokenizer.pad_id
    return from_huggingface(folder, **{**ids, **kwargs}), tokenizer, starts, template
