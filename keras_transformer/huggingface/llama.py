"""Llama: Touvron et al., 2023, "LLaMA: Open and Efficient Foundation Language Models", and its successors to 3.3."""

from keras_transformer.huggingface.byte_pair import byte_pair_kind
from keras_transformer.huggingface.decoders import DecoderFamily
from keras_transformer.huggingface.sentence_piece import sentence_piece_kind
from keras_transformer.huggingface.tokenizers import SENTENCE_PIECE_TOKENS, TokenizerKind

TOKENS = {name: SENTENCE_PIECE_TOKENS[name] for name in ("unk", "bos", "eos")}
PIECES = sentence_piece_kind("llama", "LlamaTokenizer", TOKENS, add_dummy_prefix=True)  # of Llama 1 and 2
BYTE_LEVEL = byte_pair_kind("llama", adds_bos=True)  # of Llama 3


def _read(folder):
    """Reads tokenizer.model, or else tokenizer.json."""
    return (PIECES if (folder / "tokenizer.model").is_file() else BYTE_LEVEL).read(folder)


def _write(tokenizers, folder, model):
    """Writes tokenizer.json, or tokenizer.model for a SentencePiece model."""
    from keras_transformer.text import BytePairTokenizer  # loads TensorFlow

    kind = BYTE_LEVEL if type(tokenizers[0]) is BytePairTokenizer else PIECES
    kind.write(tokenizers, folder, model)


TOKENIZER = TokenizerKind((("tokenizer.model", "tokenizer.json"),), _read, _write)
FAMILY = DecoderFamily("llama", ("LlamaForCausalLM",), TOKENIZER)
