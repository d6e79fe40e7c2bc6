"""Reading and writing of SentencePiece models: as they are (Gemma), or with the ids of fairseq (XLM-RoBERTa)."""

from keras_transformer.huggingface.configs import check_parts
from keras_transformer.huggingface.tokenizers import (
    SENTENCE_PIECE_TOKENS,
    TokenizerKind,
    check_sentence_piece,
    check_tokenizers,
    write_tokenizer_config,
)

FILE = "sentencepiece.bpe.model"
START = ("<s>", "<pad>", "</s>", "<unk>")  # fairseq's first ids; the model's own are `<unk>`, `<s>`, `</s>`
MASK = "<mask>"


def sentence_piece_kind(family, tokenizer_class, tokens, **expected):
    """Makes the `TokenizerKind` of a SentencePiece model, tokenizer.model, whose ids are the checkpoint's.

    Args:
        family: The `model_type`.
        tokenizer_class: Name of transformers' class.
        tokens: A dict of the special tokens, which are the model's first pieces: "pad", "unk" and so on.
        **expected: What transformers takes for granted, as `check_sentence_piece` takes it.
    """

    def read(folder):
        from keras_transformer.text import SentencePieceTokenizer  # loads TensorFlow

        return (SentencePieceTokenizer(folder / "tokenizer.model"),)

    def write(tokenizers, folder, model):
        from keras_transformer.text import SentencePieceTokenizer

        (tokenizer,) = check_tokenizers(family, tokenizers, SentencePieceTokenizer, model)
        check_sentence_piece(family, tokenizer, ids=tuple(tokens.values()), **expected)
        (folder / "tokenizer.model").write_bytes(tokenizer.model)
        write_tokenizer_config(folder, tokenizer_class, tokens, add_bos_token=True)

    return TokenizerKind((("tokenizer.model",),), read, write)


def fairseq_kind(family, tokenizer_class, more=(MASK,)):
    """Makes the `TokenizerKind` of a SentencePiece model with fairseq's ids.

    The ids are those of `START`, then the model's pieces without its three special ones, then further tokens.

    Args:
        family: The `model_type`.
        tokenizer_class: Name of transformers' class.
        more: The tokens after the pieces, a tuple of str.
    """

    def vocabulary(model):
        from keras_transformer.text import SentencePieceTokenizer  # loads TensorFlow

        own = SentencePieceTokenizer(model)
        check_sentence_piece(family, own, ids=("<unk>", "<s>", "</s>"))
        return own.model, [*START, *own.pieces(range(3, own.vocab_size)), *more]

    def read(folder):
        from keras_transformer.text import SentencePieceTokenizer

        return (SentencePieceTokenizer(*vocabulary(folder / FILE)),)

    def write(tokenizers, folder, model):
        from keras_transformer.text import SentencePieceTokenizer

        (tokenizer,) = check_tokenizers(family, tokenizers, SentencePieceTokenizer, model)
        _, pieces = vocabulary(tokenizer.model)
        check_parts(family, fairseq_ids=(tokenizer.pieces(range(tokenizer.vocab_size)) == pieces, True))
        (folder / FILE).write_bytes(tokenizer.model)
        tokens = {**SENTENCE_PIECE_TOKENS, "cls": "<s>", "sep": "</s>", "mask": MASK}
        write_tokenizer_config(folder, tokenizer_class, tokens)

    return TokenizerKind(((FILE,),), read, write)


FAIRSEQ_SENTENCE_PIECE = fairseq_kind("xlm-roberta", "XLMRobertaTokenizer")
