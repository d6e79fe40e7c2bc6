"""Llama: Touvron et al., 2023, "LLaMA: Open and Efficient Foundation Language Models", and its successors to 3.3."""

from keras_transformer.huggingface.families.decoders import DecoderFamily
from keras_transformer.huggingface.tokenizers.byte_pair import byte_pair_kind
from keras_transformer.huggingface.tokenizers.kinds import SENTENCE_PIECE_TOKENS, first_of
from keras_transformer.huggingface.tokenizers.sentence_piece import sentence_piece_kind

TOKENS = {name: SENTENCE_PIECE_TOKENS[name] for name in ("unk", "bos", "eos")}
# Of Llama 1 and 2, and of Llama 3.
PIECES = sentence_piece_kind("llama", "LlamaTokenizer", TOKENS, add_dummy_prefix=True)
BYTE_LEVEL = byte_pair_kind("llama", adds_bos=True)

TOKENIZER = first_of(PIECES, BYTE_LEVEL)
FAMILY = DecoderFamily("llama", ("LlamaForCausalLM",), TOKENIZER)
