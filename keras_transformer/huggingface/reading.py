"""Models that read texts, each with its tokenizer, whose special ids count."""

from keras_transformer.huggingface.chat import chat_template_from_huggingface
from keras_transformer.huggingface.checkpoint import Checkpoint, from_huggingface, tokenizers_from_huggingface
from keras_transformer.huggingface.families import DECODERS
from keras_transformer.huggingface.sentence_embeddings import embedder_options
from keras_transformer.huggingface.tensors import fill_weights, full_name
from keras_transformer.huggingface.tokenizers.kinds import starts_with_bos, tokenizer_limit, with_ends
from keras_transformer.text import SentencePieceTokenizer, WordPieceTokenizer
from keras_transformer.text.word_piece import SPECIAL

READERS = (from_huggingface, tokenizers_from_huggingface)


def encoder_tokenizer(folder, read=tokenizers_from_huggingface):
    """Reads the tokenizer of an encoder, or that of a language model that makes vectors with the ids around its texts.

    Args:
        folder: A `pathlib.Path`.
        read: What reads the tokenizers of a folder.

    Returns:
        The tokenizer, and whether its `bos_id` begins a text.
    """
    (tokenizer,) = read(folder)
    decodes = Checkpoint(folder).family.model_type in DECODERS
    return with_ends(tokenizer, folder) if decodes else (tokenizer, True)


def read_encoder(folder, readers=READERS, **kwargs):
    """Reads an `EncoderModel` and its tokenizer. transformers reads no other ids than the tokenizer's.

    Args:
        folder: A `pathlib.Path`.
        readers: What reads the model and the tokenizers, as `READERS`.
        **kwargs: Other arguments of `from_huggingface`.
    """
    from_huggingface, tokenizers_from_huggingface = readers
    tokenizer, starts = encoder_tokenizer(folder, tokenizers_from_huggingface)
    ids = {"pad_id": tokenizer.pad_id, "cls_id": tokenizer.bos_id, "sep_id": tokenizer.eos_id}
    ids["starts_with_cls"] = starts
    if isinstance(tokenizer, WordPieceTokenizer) and tokenizer.special_tokens == SPECIAL:
        ids["num_separators"] = 1
    elif isinstance(tokenizer, SentencePieceTokenizer):
        ids["num_separators"] = 2
    return from_huggingface(folder, **{**ids, **kwargs}), tokenizer


def with_labels(model, folder, kind, labels):
    """Returns a model with copies of these weights under a new head for labels, as transformers makes it.

    The pooler has the weights of the folder where its tensors are there, as in a BERT for masked words.

    Args:
        model: An `EncoderModel` that was read from the folder.
        folder: A `pathlib.Path`.
        kind: `ClassificationHead` or `TaggingHead`.
        labels: List of str.

    Raises:
        ValueError: If the family has no class with such a head.
    """
    checkpoint = Checkpoint(folder)
    family = checkpoint.family
    new = family.with_labels(model, checkpoint.config, kind, labels)
    own = {id(weight) for weight in getattr(new.pooler, "weights", ())}
    tensors = {each.name: each for each in family.make_tensors(new) if own.issuperset(map(id, each.weights))}
    stored = [
        each
        for each in checkpoint.stored
        if full_name(each.name, tensors, family.prefix, family.renamed) in tensors
    ]
    if len(stored) == len(tensors):
        fill_weights(list(tensors.values()), stored, family.prefix, renamed=family.renamed)
    return new


def embedder_arguments(folder, model):
    """Returns `embedder_options` with the largest number of tokens that the folder and the model allow, a dict.

    Args:
        folder: A `pathlib.Path`.
        model: The `EncoderModel` of the folder.
    """
    options, longest = embedder_options(folder), model.embeddings.max_length
    limits = [Checkpoint(folder).config.get("max_position_embeddings"), tokenizer_limit(folder)]
    limits = [options.get("max_source_length"), *(limits if longest is None else [longest])]
    limits = [limit for limit in limits if limit is not None]
    return {**options, **({"max_source_length": min(limits)} if limits else {})}


def read_language_model(folder, readers=READERS, *, chat=False, **kwargs):
    """Reads a `LanguageModel` and its tokenizer.

    Args:
        folder: A `pathlib.Path`.
        readers: What reads the model and the tokenizers, as `READERS`.
        chat: Whether its texts come from its `ChatTemplate`, whose special tokens then get their ids.
        **kwargs: Other arguments of `from_huggingface`.

    Returns:
        The model, the tokenizer, and whether its texts begin with bos.
    """
    from_huggingface, tokenizers_from_huggingface = readers
    checkpoint, (tokenizer,) = Checkpoint(folder), tokenizers_from_huggingface(folder)
    starts = starts_with_bos(folder, checkpoint.family.tokenizer, tokenizer.bos_id)
    if chat:
        template = chat_template_from_huggingface(folder)
        tokenizer, starts = template.with_special_tokens(tokenizer), template.starts_with_bos
    # Of several ids of an end, the tokenizer's is that of a text. config.json seldom names the id for padding.
    eos_id = tokenizer.eos_id
    ids = {"eos_id": eos_id} if eos_id in checkpoint.stop_ids else {}
    if tokenizer.pad_id is not None:
        ids["pad_id"] = tokenizer.pad_id
    return from_huggingface(folder, **{**ids, **kwargs}), tokenizer, starts
