"""Whisper: Radford et al., 2023, "Robust Speech Recognition via Large-Scale Weak Supervision".

transformers takes spectrograms `(batch, mels, frames)`, this library `(batch, frames, mels)`.
"""

from keras_transformer.huggingface.configs import with_defaults
from keras_transformer.huggingface.families.seq2seq import PLACES, ROWS, STACKS, Seq2SeqFamily
from keras_transformer.huggingface.known_keys import IGNORED, SEQ2SEQ
from keras_transformer.huggingface.tensors import Tensor, matrix, vector
from keras_transformer.huggingface.tokenizers.byte_pair import WHISPER_BYTE_PAIR
from keras_transformer.layers import ConvolutionalSubsampling, Embeddings, LearnedPositions

SIZES = {"num_layers": 4, "num_heads": 6, "d_ff": 1536}
WHISPER_ROWS = {
    **with_defaults(
        ROWS,
        vocab_size=51865,
        d_model=384,
        dropout=0.0,
        pad_id=50256,
        bos_id=50257,
        eos_id=50256,
        **{f"{stack}_{name}": size for stack in STACKS for name, size in SIZES.items()},
    ),
    "num_mel_bins": ("num_mel_bins", 80),
    "max_source_length": ("max_source_positions", 1500),
    "max_length": ("max_target_positions", 448),
}
# No part of transformers' model reads `scale_embedding`.
del WHISPER_ROWS["is_scaled"]
WHISPER_PLACES = {
    **PLACES,
    "vocab_size": "target_vocab_size",
    "num_mel_bins": lambda model: model.source.convolutions[0].kernel.shape[1],
    "max_source_length": "source.positions.max_length",
    "max_length": "target.positions.max_length",
    "pad_id": lambda model: model.eos_id if model.pad_id == model.bos_id else model.pad_id,
}


class WhisperFamily(Seq2SeqFamily):
    """Whisper, whose source is a spectrogram.

    Its `pad_token_id` is its `eos_token_id`, which a loss must not mask. Then `pad_id` is the id that begins an output,
    as in T5 and Marian: no text contains it.
    """

    def arguments_of(self, config):
        """Returns the arguments that a config.json describes, a dict."""
        arguments = super().arguments_of(config)
        ends = arguments["eos_id"] if isinstance(arguments["eos_id"], list) else [arguments["eos_id"]]
        pads = arguments["pad_id"] is not None and arguments["pad_id"] not in ends
        return {**arguments, "pad_id": arguments["pad_id"] if pads else arguments["bos_id"]}

    def embeddings(self, arguments, dtype):
        """Makes the convolutions over the source, and the embeddings of the target."""
        source = ConvolutionalSubsampling(
            arguments["d_model"],
            # The paper's sinusoids, which checkpoints hold as a table.
            positions=LearnedPositions(
                arguments["max_source_length"], trainable=False, dtype=dtype, name="positions"
            ),
            dropout=arguments["dropout"],
            dtype=dtype,
            name="source",
        )
        source.build((None, None, arguments["num_mel_bins"]))
        target = Embeddings(
            arguments["vocab_size"],
            arguments["d_model"],
            LearnedPositions(arguments["max_length"], dtype=dtype, name="positions"),
            dropout=arguments["dropout"],
            dtype=dtype,
            name="target",
        )
        return source, target

    def other_keys(self, model):
        """Returns the id that begins a text where no `decoder_start_token_id` does: the one that ends it."""
        return {"bos_token_id": model.eos_id}

    def tensors_of_embeddings(self, model):
        """Describes the tensors of the convolutions, and the table of tokens."""
        for i, convolution in enumerate(model.source.convolutions, 1):
            name, kernel = f"model.encoder.conv{i}", convolution.kernel
            yield Tensor(f"{name}.weight", tuple(kernel.shape)[::-1], (kernel,), (2, 1, 0))
            yield vector(f"{name}.bias", convolution.bias)
        yield matrix("model.decoder.embed_tokens.weight", model.target.tokens.embeddings)
        yield matrix("proj_out.weight", model.output_embedding.embeddings)

    def make_tensors(self, model):
        """Describes the tensors. A bias of keys, which a checkpoint lacks, adds the same to all scores of a query."""
        return (each for each in super().make_tensors(model) if not each.name.endswith("k_proj.bias"))


FAMILY = WhisperFamily(
    "whisper",
    ("WhisperForConditionalGeneration",),
    WHISPER_BYTE_PAIR,
    rows=WHISPER_ROWS,
    places=WHISPER_PLACES,
    normalize_first=True,
    output_bias=False,
    more_keys=(*SEQ2SEQ, *IGNORED["config.json of Whisper"]),
)
