"""Reading of the models and the tokenizers of Hugging Face checkpoints."""

import functools
import math
from pathlib import Path

from keras_transformer.checks import MOST_LAYERS, check, check_numbers, short_errors
from keras_transformer.huggingface.adapters import head_keys, joined, with_adapter
from keras_transformer.huggingface.checkpoint_files import keep_files
from keras_transformer.huggingface.configs import check_config
from keras_transformer.huggingface.families import FAMILIES
from keras_transformer.huggingface.files import (
    CONFIG,
    GENERATION_CONFIG,
    read_config,
    read_if_there,
    stored_tensors,
)
from keras_transformer.huggingface.generation import KNOWN as SEARCH_KEYS
from keras_transformer.huggingface.generation import REFUSED as REFUSED_SEARCHES
from keras_transformer.huggingface.known_keys import check_keys, check_tokenizer_files
from keras_transformer.huggingface.quantized import QuantizedMatrices, dtype_of
from keras_transformer.huggingface.sentence_embeddings import is_sentence_embedder, warn_of_activation
from keras_transformer.huggingface.tensors import fill_weights
from keras_transformer.keras_internals import sublayers, take_own_policies, without_memory

# Keys of config.json for sizes that are a dimension of a stored tensor, and for numbers of layers.
WIDTHS = (
    *("vocab_size", "decoder_vocab_size", "type_vocab_size", "num_labels", "relative_attention_num_buckets"),
    *("hidden_size", "embedding_size", "dim", "d_model", "n_embd", "max_position_embeddings", "n_positions"),
    *("num_mel_bins", "max_source_positions", "max_target_positions"),
    *("intermediate_size", "hidden_dim", "n_inner", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim"),
    *("d_kv", "head_dim", "num_attention_heads", "num_key_value_heads", "num_heads", "n_head", "n_heads"),
)
NUMBERS_OF_LAYERS = (
    *("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    *("num_decoder_layers", "encoder_layers", "decoder_layers"),
)
WITHOUT_TOKENIZER = "In Python, `from_huggingface` reads the model alone; it takes and gives token ids."


class Checkpoint:
    """The files of a folder that describe a model.

    Args:
        folder: A path.

    Attributes:
        folder: The folder, a `pathlib.Path`.
        config: config.json as it was read, a dict.
        makes_vectors: Whether modules.json says that the model makes vectors.
        family: The `Family` that describes its models.

    Raises:
        ValueError: If config.json is missing or damaged, or names a family that the library does not have.
    """

    def __init__(self, folder):
        self.folder = Path(folder)
        self.config = read_config(folder)
        model_type = self.config.get("model_type")
        rule = f"`model_type` of config.json must be one of {sorted(FAMILIES)}."
        check(model_type in FAMILIES, rule, model_type=model_type)
        self.makes_vectors = is_sentence_embedder(folder)
        self.family = FAMILIES[model_type].variant(self.config, self.makes_vectors)

    @functools.cached_property
    def stored(self):
        """The tensors without their values, a list of `StoredTensor`."""
        return stored_tensors(self.folder)

    @property
    def stop_ids(self):
        """The ids that end an output, a list: that of config.json first, if generation_config.json names it too."""
        first = self.config.get("eos_token_id")
        ends = read_if_there(self.folder, GENERATION_CONFIG).get("eos_token_id", first)
        ends = [each for each in (ends if isinstance(ends, list) else [ends]) if each is not None]
        return [first, *(each for each in ends if each != first)] if first in ends else ends

    def model_config(self):
        """Returns config.json with the head that an adapter asks for and with all ids that end an output, a dict."""
        ends, head = self.stop_ids, head_keys(self.config, self.family, self.folder)
        ids = {"eos_token_id": ends[0] if len(ends) == 1 else ends} if ends else {}
        return {**self.config, **head, **ids}


@short_errors()
def from_huggingface(folder, verbose=False, *, precision="float32", base=None, **kwargs):
    """Makes a model from a Hugging Face checkpoint and loads its weights, tensor by tensor.

    `architectures` in config.json decides the head of an encoder, such as `BertForSequenceClassification`. A family's
    classes are `FAMILIES[model_type].architectures`. `EncoderModel.with_head` puts another head on.

    The prompt of a `LanguageModel` ends at its last token that is not padding. Where config.json has no `pad_token_id`,
    `pad_id` is `eos_token_id`: in GPT-2 it is the only token that no text contains. An eos at the end of a prompt is
    then padding.

    Of generation_config.json only `eos_token_id` is read: a language model stops at each of several ids. Pass what else
    it asks for to `generate`: `search_options(folder, model)` reads it as the arguments of a `Translator` or a
    `TextGenerator`, and `keras-transformer convert` takes it over.

    A folder of PEFT, with adapter_config.json and adapter_model.safetensors, holds the adapter of another model. It is
    merged into that model's tensors while these are read.

    Args:
        folder: A path. The folder holds config.json with a `model_type` among `FAMILIES`, and model.safetensors or the
            files that model.safetensors.index.json names; or an adapter of LoRA. Tensors are float64, float32, float16
            or bfloat16.
        verbose: Whether to show a progress bar on stderr.
        precision: "float32", or "int8" to quantize each matrix while it is read. The model is the one that
            `model.quantize("int8")` gives afterwards. Memory holds the int8 model and the floats of one tensor.
        base: The folder of an adapter's base model, a path; None for the one that adapter_config.json names.
        **kwargs: Keras's `dtype`, `name`, `trainable`. For a language model and for an encoder-decoder also `pad_id`,
            `bos_id`, `eos_id`, in place of config.json's ids; of several ids of an end the first is `eos_id`. For an
            encoder `pad_id`, `cls_id`, `sep_id`; config.json often lacks the last two.

    Returns:
        A `LanguageModel` for GPT-2, Llama and its relatives; a `Transformer` for Marian; a `T5`; an `EncoderDecoder`
        for BART and its relatives, and for Whisper, whose source reads `(batch, frames, mels)`; an `EncoderModel` for
        BERT and its relatives, for EmbeddingGemma, and for a decoder with modules.json, which makes vectors; a
        `VisionTransformer` for ViT, with the classes of a `ViTForImageClassification`, or with or without the pooler of
        a `ViTModel`.

    Raises:
        ValueError: If a file is missing, damaged or pickled; if config.json asks for something that the library does
            not have; if a tensor is missing, left over or of another shape; or if it differs from the tensor it is tied
            to or from what the model computes in its place.
    """
    with joined(folder, base) as whole:
        return _from_huggingface(whole, verbose, precision, kwargs)


def _from_huggingface(folder, verbose, precision, kwargs):
    """Makes a model of a folder with a checkpoint, perhaps with an adapter in it."""
    checkpoint = Checkpoint(folder)
    config, family = checkpoint.config, checkpoint.family
    check_config(config, quantization_config=None)
    check_config(config, use_mrope=False)
    check_keys(config, {*family.known_keys, *SEARCH_KEYS, *REFUSED_SEARCHES}, CONFIG)
    warn_of_activation(config)
    config = checkpoint.model_config()
    family.check_classes(config)
    kwargs["dtype"] = dtype_of(precision, kwargs.get("dtype"), family.matrices)
    stored = checkpoint.stored
    _check_sizes(config, family, stored)
    try:
        kwargs |= family.arguments_of_tensors(config, {each.name for each in stored})
        with without_memory():
            model = family.make_model(config, **kwargs)
            check_numbers(model, 2 * sum(math.prod(tensor.shape) for tensor in stored))
    except (ArithmeticError, AttributeError, KeyError, TypeError) as error:
        raise ValueError(
            f"config.json of {folder} must describe a {family.model_type!r} model. Received: a value of another type "
            f"or a key that is missing: {error!r:.200}."
        ) from error
    take_own_policies((model, *sublayers(model)))
    tensors = list(family.make_tensors(model))
    fill_weights(
        tensors,
        with_adapter(stored, folder, tensors, family),
        family.prefix,
        family.ignored,
        family.make_tables(model),
        family.renamed,
        verbose,
        QuantizedMatrices(model).values,
    )
    keep_files(model, checkpoint)
    return model


def _check_sizes(config, family, stored):
    """Raises `ValueError` for a large size that no stored tensor has: a model of that size would fill the memory.

    A smaller size that is wrong is found later, with the names of the tensors that do not fit.

    Args:
        config: The config.json, a dict.
        family: The `Family` of the model.
        stored: List of `StoredTensor`.
    """
    # An empty tensor takes no bytes.
    shapes = [tensor.shape for tensor in stored if 0 not in tensor.shape]
    largest, layers = (
        max(1000, *(size for shape in shapes for size in shape), 0),
        min(MOST_LAYERS, max(100, len(shapes) // 4)),
    )
    limits = {**dict.fromkeys(WIDTHS, largest), **dict.fromkeys(NUMBERS_OF_LAYERS, layers)}
    for key, limit in limits.items():
        value = config.get(key)
        if key not in family.guessed_keys and isinstance(value, (int, float)) and value > limit:
            raise ValueError(
                f"`{key}` of config.json must be at most {limit}, for the stored tensors. Received: {key}={value}."
            )


@short_errors()
def tokenizers_from_huggingface(folder, base=None):
    """Reads the tokenizers of a Hugging Face checkpoint.

    Args:
        folder: A path. The folder holds config.json and the files of the tokenizer; or an adapter, whose tokenizer may
            be that of its base model.
        base: As in `from_huggingface`.

    Returns:
        A tuple of the source's and the target's tokenizer, or of one for both. Their ids are the model's.

    Raises:
        ValueError: If the model reads no text, a file is missing or damaged, or it asks for something that no
            tokenizer of `keras_transformer.text` does.
    """
    with joined(folder, base) as whole:
        return _tokenizers_from_huggingface(whole)


def _tokenizers_from_huggingface(folder):
    """Reads the tokenizers of a folder with a checkpoint."""
    family = Checkpoint(folder).family
    if family.tokenizer is None:
        raise ValueError(
            f"`folder` must hold a model that reads text and whose tokenizer the library has. Received: {folder}, a "
            f"{family.model_type!r} model. {WITHOUT_TOKENIZER}"
        )
    missing = [
        " or ".join(names)
        for names in family.tokenizer.files
        if not any((folder / name).is_file() for name in names)
    ]
    if missing:
        raise ValueError(
            f"`folder` must have the files of the model's tokenizer. Received: {folder} without {', '.join(missing)}. "
            f"{WITHOUT_TOKENIZER}"
        )
    check_tokenizer_files(folder)
    return family.tokenizer.read(folder)
