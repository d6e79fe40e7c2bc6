"""Audio: log-mel spectrograms, and convolutions that shorten them."""

import keras
import numpy as np

from keras_transformer.checks import check, check_choice, check_positive, check_range
from keras_transformer.execution import ops
from keras_transformer.execution.ops import at_least_float32
from keras_transformer.layers.base import Configured, ensure_built
from keras_transformer.layers.feed_forward import activated, get_activation
from keras_transformer.layers.positions import check_added
from keras_transformer.layers.residual import Dropout
from keras_transformer.masks import as_token_mask

# Slaney's mels: equal steps in hertz up to 1,000 Hz, then equal ratios, 27 of them from 1,000 to 6,400 Hz.
MELS_PER_HERTZ, BREAK = 0.015, 1000.0
MELS_PER_RATIO = 27.0 / np.log(6.4)


@keras.saving.register_keras_serializable("keras_transformer")
class LogMelSpectrogram(Configured, keras.layers.Layer):
    """The logarithm of the power in each band of mels, frame by frame, as Whisper reads it.

    Radford et al., 2023, "Robust Speech Recognition via Large-Scale Weak Supervision", section 2.2. With `p` the power
    of the Fourier transform of each window, `F` the filters and `y = log10(max(p F, min_power))`:

        output = (max(y, max(y) - top_db / 10) + 4) / 4

    The maximum is that of a row, so a row does not depend on the others. A frame stands at each `sequence_stride`
    samples, in the middle of a periodic Hann window; the audio is reflected at both ends, and the last frame is left
    out. The filters are those of Slaney, 1998, "Auditory Toolbox", each of the same area. It has no weights and
    computes in float32 whatever the policy, or in float64 under a float64 policy. The defaults are those of Whisper,
    which reads 30 seconds of audio: shorter audio ends with zeros.

    Args:
        num_mel_bins: Number of bands.
        sampling_rate: Samples of a second.
        fft_length: Samples of a window.
        sequence_stride: Samples from one frame to the next.
        min_freq: Lower end of the lowest band, in hertz.
        max_freq: Upper end of the highest band, in hertz; half of `sampling_rate` when None.
        min_power: The least power that is told from silence.
        top_db: What is further below the maximum, in decibels, is raised to this distance.

    Call arguments:
        audio: float `(batch, samples)`, from -1 to 1; more than half of `fft_length`.
        mask: bool `(batch, samples)`, True where a sample is real: other samples count as silence. Keras's implicit
            mask of `audio` when None.

    Returns:
        float32 `(batch, samples // sequence_stride, num_mel_bins)`. A frame is masked where its middle is.

    Raises:
        ValueError: If a size, `min_power` or `top_db` is not positive, the ends of the bands do not rise from 0 to half
            of `sampling_rate`, or the audio has no float dtype, another rank or too few samples.

    >>> LogMelSpectrogram()(np.zeros((1, 16000), "float32")).shape
    TensorShape([1, 100, 80])
    """

    def __init__(
        self,
        num_mel_bins=80,
        sampling_rate=16000,
        fft_length=400,
        sequence_stride=160,
        min_freq=0.0,
        max_freq=None,
        *,
        min_power=1e-10,
        top_db=80.0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        sizes = {"num_mel_bins": num_mel_bins, "sampling_rate": sampling_rate}
        check_positive(**sizes, fft_length=fft_length, sequence_stride=sequence_stride)
        check_range(0, above=True, min_power=min_power, top_db=top_db)
        self.max_freq = sampling_rate / 2 if max_freq is None else max_freq
        check_range(0, sampling_rate / 2, above=True, max_freq=self.max_freq)
        check_range(0, min_freq=min_freq)
        ends = {"min_freq": min_freq, "max_freq": self.max_freq}
        check(min_freq < self.max_freq, "`min_freq` must be below `max_freq`.", **ends)
        self.num_mel_bins = num_mel_bins
        self.sampling_rate = sampling_rate
        self.fft_length = fft_length
        self.sequence_stride = sequence_stride
        self.min_freq = min_freq
        self.min_power = min_power
        self.top_db = top_db
        # A bfloat16 holds no quiet samples beside loud ones.
        self.autocast = False
        self.supports_masking = True

    @property
    def filters(self):
        """The share of each band in each bin of the Fourier transform: float64 `(fft_length // 2 + 1, num_mel_bins)`.

        A filter is a triangle between the middles of its neighbours.
        """
        bins = np.arange(self.fft_length // 2 + 1)[:, None] * (self.sampling_rate / self.fft_length)
        ends = _to_mels(np.array([self.min_freq, self.max_freq]))
        edges = _to_hertz(np.linspace(*ends, self.num_mel_bins + 2))
        low, middle, high = edges[:-2], edges[1:-1], edges[2:]
        triangles = np.minimum((bins - low) / (middle - low), (high - bins) / (high - middle))
        return np.maximum(triangles, 0.0) * 2.0 / (high - low)

    def call(self, audio, mask=None):
        return self.normalized(self.logarithms(audio, mask))

    def logarithms(self, audio, mask=None):
        """Computes the logarithms to the base 10 of the power in each band, which no other part of a row changes.

        Args:
            audio: As for the layer.
            mask: As for the layer.

        Returns:
            float32 `(batch, samples // sequence_stride, num_mel_bins)`.
        """
        self._check(audio)
        dtype = at_least_float32(self.compute_dtype)
        x = ops.cast(audio, dtype)
        x = x if mask is None else ops.where(as_token_mask(mask, "mask"), x, 0.0)
        sizes = self.fft_length, self.sequence_stride, self.fft_length
        # Keras's own "hann" of an odd length is not periodic on TensorFlow.
        window = 0.5 - 0.5 * np.cos(np.arange(self.fft_length) * (2.0 * np.pi / self.fft_length))
        real, imaginary = ops.stft(x, *sizes, ops.convert_to_tensor(window, dtype))
        power = (ops.square(real) + ops.square(imaginary))[:, :-1]
        power = ops.matmul(power, ops.convert_to_tensor(self.filters, dtype))
        return ops.log10(ops.maximum(power, self.min_power))

    def normalized(self, y):
        """Raises the lowest logarithms of each row, and brings all to the range that a model reads."""
        y = ops.maximum(y, ops.max(y, axis=(1, 2), keepdims=True) - self.top_db / 10.0)
        return (y + 4.0) / 4.0

    def _check(self, audio):
        """Raises `ValueError` for whole numbers, another rank, or audio that is too short to be reflected."""
        dtype, shape = keras.backend.standardize_dtype(audio.dtype), tuple(audio.shape)
        half = self.fft_length // 2
        rule = f"`audio` must be floats from -1 to 1, `(batch, samples)`, with more than {half} samples."
        fits = "float" in dtype and len(shape) == 2 and (shape[1] is None or shape[1] > half)
        check(fits, rule, shape=shape, dtype=dtype)

    def _frames(self, samples):
        """Returns the number of frames of a number of samples."""
        return (samples - self.fft_length % 2) // self.sequence_stride

    def compute_mask(self, audio, mask=None):
        return (
            None if mask is None else mask[:, :: self.sequence_stride][:, : self._frames(ops.shape(mask)[1])]
        )

    def compute_output_shape(self, audio_shape):
        batch, samples = audio_shape
        return (batch, None if samples is None else self._frames(samples), self.num_mel_bins)

    def compute_output_spec(self, audio, mask=None):
        self._check(audio)
        dtype = at_least_float32(self.compute_dtype)
        return keras.KerasTensor(self.compute_output_shape(audio.shape), dtype)


def _to_mels(hertz):
    ratios = np.log(np.maximum(hertz, BREAK) / BREAK)
    return np.minimum(hertz, BREAK) * MELS_PER_HERTZ + ratios * MELS_PER_RATIO


def _to_hertz(mels):
    first = BREAK * MELS_PER_HERTZ
    return np.minimum(mels, first) / MELS_PER_HERTZ * np.exp(np.maximum(mels - first, 0.0) / MELS_PER_RATIO)


@keras.saving.register_keras_serializable("keras_transformer")
class ConvolutionalSubsampling(Configured, keras.layers.Layer):
    """Convolutions over frames, some with a stride, each with its activation; then positions and dropout.

    It is the `source` of an `EncoderDecoder` that reads a spectrogram. The defaults are those of Whisper (Radford et
    al., 2023, section 2.2): two convolutions, of which the second halves the number of frames. A masked frame counts
    as zeros in each of them, so padding changes no real frame.

    Args:
        filters: Width of each convolution, and so of the output: the model's `d_model`.
        kernel_sizes: Number of frames that each convolution sees.
        strides: Number of frames from one output of each convolution to its next.
        activation: Name or function of the activation: one of Keras's, or "gelu_tanh".
        padding: Where zeros stand: "same" for as many before the first frame as after the last one, so that an output
            is in the middle of what it sees (Keras's own "same" puts them after it where there is a stride); "causal"
            for before the first alone; "valid" for none.
        positions: A layer that adds positions, such as `PositionalEncoding()` or `LearnedPositions(1500)`; None for
            none.
        dropout: Share of the output dropped in training.

    Call arguments:
        frames: `(batch, frames, features)`.
        mask: bool `(batch, frames)`, True where a frame is real. Keras's implicit mask of `frames` when None.
        training: Whether to drop.

    Returns:
        `(batch, source_len, filters)`; without "valid" padding `source_len` is the number of frames divided by each
        stride, rounded up. An output is masked where the frame in its middle is, with "causal" and "valid" the last
        frame that it sees.

    Raises:
        ValueError: If a size is not positive, there are not as many strides as kernel sizes, `padding` is unknown,
            `dropout` is not in [0, 1), `positions` act inside attention, or there are more frames than `max_length`.

    >>> ConvolutionalSubsampling(4)(np.zeros((1, 7, 3), "float32")).shape
    TensorShape([1, 4, 4])
    """

    def __init__(
        self,
        filters,
        kernel_sizes=(3, 3),
        strides=(1, 2),
        activation="gelu",
        padding="same",
        positions=None,
        dropout=0.1,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_positive(filters=filters)
        rule = "`strides` must have one for each of `kernel_sizes`."
        check(len(strides) == len(kernel_sizes), rule, strides=strides, kernel_sizes=kernel_sizes)
        for size, stride in zip(kernel_sizes, strides, strict=True):
            check_positive(kernel_sizes=size, strides=stride)
        check_choice(("same", "causal", "valid"), padding=padding)
        self.filters = filters
        self.kernel_sizes, self.strides = tuple(kernel_sizes), tuple(strides)
        self.activation = get_activation(activation)
        self.padding = padding
        self.positions = check_added(positions, type(self).__name__)
        self.dropout = dropout
        self.convolutions = [
            keras.layers.Conv1D(filters, size, stride, dtype=self.dtype_policy, name=f"convolution_{i}")
            for i, (size, stride) in enumerate(zip(kernel_sizes, strides, strict=True))
        ]
        self.drop = Dropout(dropout, dtype=self.dtype_policy, name="drop")
        self.supports_masking = True

    @property
    def max_length(self):
        """The largest number of frames, an int; None for any number."""
        longest = getattr(self.positions, "max_length", None)
        for first, stride in reversed(self._steps() if longest else ()):
            longest = longest * stride + first
        return longest

    def _steps(self):
        """Returns for each convolution the first frame that has an output, and the stride: a list of pairs."""
        firsts = [size - 1 if self.padding == "valid" else 0 for size in self.kernel_sizes]
        return list(zip(firsts, self.strides, strict=True))

    def build(self, frames_shape):
        shape = tuple(frames_shape)
        check(len(shape) == 3, "`frames` must have shape `(batch, frames, features)`.", shape=shape)
        for convolution in self.convolutions:
            ensure_built(convolution, (None, None, shape[-1]))
            shape = (None, None, self.filters)
        if self.positions is not None:
            ensure_built(self.positions, shape)

    def call(self, frames, mask=None, training=None):
        x, mask = frames, as_token_mask(mask, "mask")
        for convolution, size, (first, stride) in zip(
            self.convolutions, self.kernel_sizes, self._steps(), strict=True
        ):
            x = x if mask is None else ops.where(ops.expand_dims(mask, -1), x, 0.0)
            zeros = size - 1 - first
            before = zeros if self.padding == "causal" else zeros // 2
            x = ops.pad(x, ((0, 0), (before, zeros - before), (0, 0)))
            x = activated(self.activation, convolution(x))
            mask = None if mask is None else mask[:, first::stride]
        x = x if self.positions is None else self.positions(x)
        return self.drop(x, training=training)

    def compute_mask(self, frames, mask=None):
        for first, stride in self._steps() if mask is not None else ():
            mask = mask[:, first::stride]
        return mask

    def compute_output_shape(self, frames_shape):
        batch, length, _ = frames_shape
        for first, stride in self._steps() if length is not None else ():
            length = max(0, -((first - length) // stride))
        return (batch, length, self.filters)

    def compute_output_spec(self, frames, mask=None, training=None):
        return keras.KerasTensor(self.compute_output_shape(frames.shape), dtype=self.compute_dtype)
