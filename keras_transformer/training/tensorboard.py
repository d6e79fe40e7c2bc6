"""A callback that writes the training of a `Transformer` for TensorBoard."""

import functools
import importlib.util
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from keras import ops
from tensorboard.plugins import projector

from keras_transformer.checks import check, check_positive, warn
from keras_transformer.files import replaced
from keras_transformer.keras_internals import watch_gradients
from keras_transformer.models import EncoderDecoder
from keras_transformer.optimizers import unwrapped
from keras_transformer.training.attention_maps import AttentionMaps
from keras_transformer.training.moving_average import average_in_place
from keras_transformer.training.scores import corpus_scores

# Number of ids of a vocabulary, the first and most frequent. The browser computes with all of them.
MAX_EMBEDDINGS = 2000
# Number of tokens of a sentence in an attention map.
MAX_TOKENS = 40


class TensorBoard(keras.callbacks.Callback):
    """Writes the training of a `Transformer` for TensorBoard: curves, translations, attention and embeddings.

    The horizontal axis is the optimizer's step, so a resumed training continues the curves. If the optimizer keeps a
    moving average of the weights (`use_ema=True`), then translations, attention and embeddings use the average.

    - `quality/`: the loss and metrics of `fit`, as means over the epoch so far. After each epoch, the loss and metrics
      of the validation data, and with `val_pairs` BLEU and chrF of greedy translations.
    - `training/`: `learning_rate`; and over the steps since the point before, `tokens_per_second` (target tokens),
      `padding` (its share among the ids of source and target) and `gradient_norm`. This is the mean global norm of
      the gradients that the optimizer applies, before clipping: accumulated over steps, without the scale of the loss.
      With several replicas it is the mean of their norms.
    - `translations/`: translations of the first validation pairs; and for the first pair an image of each layer's
      `encoder_attention`, `decoder_attention` and `cross_attention`, one grid for each head.
    - the projector: the embeddings of the tokens.

    Args:
        log_dir: Path of a folder. The callback writes into its folders `train` and `validation`.
        update_freq: Number of steps between two points. The last step of an epoch gets a point too.
        translator: A `Translator` of the model that is trained. None writes the curves only.
        val_pairs: List of (source, target) str to translate; needs `translator`.
        every: Number of epochs between two translations, images and embeddings.
        num_scored: Number of pairs for BLEU and chrF, at most.
        num_samples: Number of translations to show.

    Raises:
        ValueError: If Keras's backend is not TensorFlow, a number is not positive, or `val_pairs` is given without
            `translator`. During `fit`, if `translator` is one of another model.

    Example:

        callback = TensorBoard("logs", translator=Translator(model, tokenizer), val_pairs=val_pairs)
        model.fit(batches.dataset(), steps_per_epoch=batches.steps, shuffle=False, callbacks=[callback])
    """

    def __init__(
        self, log_dir, update_freq=50, translator=None, val_pairs=None, every=1, num_scored=200, num_samples=5
    ):
        super().__init__()
        if keras.backend.backend() != "tensorflow":
            raise ValueError(
                "`TensorBoard` needs Keras's TensorFlow backend. "
                f"Received: KERAS_BACKEND={keras.backend.backend()}."
            )
        check_positive(update_freq=update_freq, every=every, num_scored=num_scored, num_samples=num_samples)
        if val_pairs and translator is None:
            raise ValueError(
                f"`val_pairs` needs a `translator`. Received: {len(val_pairs)} pairs, translator=None."
            )
        self.log_dir = Path(log_dir)
        self.update_freq = update_freq
        self.translator = translator
        self.val_pairs = list(val_pairs or ())[:num_scored]
        self.every = every
        self.num_samples = num_samples

    def on_train_begin(self, logs=None):
        model = self.model
        if self.translator is not None and self.translator.model is not model:
            raise ValueError(
                "`translator` must be one of the model that is trained. Received: a translator of another model."
            )
        rule = "`translator` must have one model: an `Ensemble` has neither one attention nor one embedding to show."
        check(self.translator is None or isinstance(model, EncoderDecoder), rule, model=type(model).__name__)
        self._draws = bool(self.val_pairs) and importlib.util.find_spec("matplotlib") is not None
        if self.val_pairs and not self._draws:
            warn(
                "TensorBoard gets no attention maps, because matplotlib is missing. Install it with "
                "`pip install matplotlib`."
            )
        self._writers, self._maps = {}, {}
        with model.distribute_strategy.scope():
            self._norm = keras.metrics.Mean()
            self._padding = keras.metrics.Mean()
            self._tokens = keras.metrics.Sum()
        self._steps, self._seconds = 0, 0.0
        self._stop_watching = watch_gradients(
            unwrapped(model.optimizer), lambda gradients: self._norm.update_state(_global_norm(gradients))
        )
        model.train_step = functools.partial(self._measured_step, model.train_step)
        model.make_train_function(force=True)
        # The train function has it already.
        del model.train_step

    def _measured_step(self, train_step, data):
        """Runs the model's own step, and counts padding and tokens in the same graph."""
        x, y, _ = keras.utils.unpack_x_y_sample_weight(data)
        pad_id = self.model.pad_id
        for ids in (x["source"], y):
            # Flat: the mean is over ids, not over rows.
            self._padding.update_state(ops.ravel(ops.equal(ids, pad_id)))
        self._tokens.update_state(ops.not_equal(y, pad_id))
        return train_step(data)

    def on_epoch_begin(self, epoch, logs=None):
        self._batch = -1
        self._clock = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        now = time.perf_counter()
        self._seconds += now - self._clock
        self._clock = now
        # It is more than one with `steps_per_execution`.
        self._steps += batch - self._batch
        self._batch = batch
        if self._steps >= self.update_freq:
            self._write_point(logs)

    def on_epoch_end(self, epoch, logs=None):
        logs = logs or {}
        if self._steps:
            self._write_point({name: value for name, value in logs.items() if not name.startswith("val_")})
        self._write_scalars(
            "validation",
            {f"quality/{name[4:]}": value for name, value in logs.items() if name.startswith("val_")},
        )
        if (epoch + 1) % self.every == 0:
            with average_in_place(self.model):
                if self.val_pairs:
                    self._write_translations()
                if self._draws:
                    self._write_attention()
                if self.translator is not None:
                    self._write_embeddings()
        for writer in self._writers.values():
            writer.flush()

    def on_train_end(self, logs=None):
        self._stop_watching()
        # The next training then runs a step that measures nothing.
        self.model.train_function = None
        for writer in self._writers.values():
            writer.close()

    def _write_point(self, logs):
        measured = {
            "learning_rate": self.model.optimizer.learning_rate,
            "tokens_per_second": self._tokens.result() / self._seconds,
            "padding": self._padding.result(),
        }
        # Between two points there may be no update: gradients accumulate, or the scale of the loss was too high.
        if self._norm.count > 0:
            measured["gradient_norm"] = self._norm.result()
        self._write_scalars(
            "train",
            {f"quality/{name}": value for name, value in logs.items()}
            | {f"training/{name}": value for name, value in measured.items()},
        )
        for metric in (self._norm, self._padding, self._tokens):
            metric.reset_state()
        self._steps, self._seconds = 0, 0.0

    def _write_scalars(self, run, values):
        if values:
            with self._writing(run):
                for name, value in values.items():
                    tf.summary.scalar(name, value)

    def _writing(self, run):
        """Returns a context in which summaries go to the event file of a run, at the optimizer's step."""
        if run not in self._writers:
            self._writers[run] = tf.summary.create_file_writer(str(self.log_dir / run))
        return self._writers[run].as_default(int(ops.convert_to_numpy(self.model.optimizer.iterations)))

    def _write_translations(self):
        sources, references = map(list, zip(*self.val_pairs, strict=True))
        # Compiling takes longer than decoding these few sentences. The translator's warnings are left out: in the first
        # epochs no translation ends.
        translations = self.translator.translate_batch([text.encode() for text in sources], jit_compile=False)
        scores = corpus_scores(translations, references)
        self._write_scalars("validation", {f"quality/{name}": scores[name] for name in ("bleu", "chrf")})
        rows = zip(sources, translations, references, strict=True)
        table = [("source", "translation", "reference"), *rows][: self.num_samples + 1]
        with self._writing("validation"):
            tf.summary.text("translations/samples", table)

    def _write_attention(self):
        translator, model = self.translator, self.model
        tokenizers = translator.source_tokenizer, translator.target_tokenizer
        source, target = (
            [*tokenizer.tokenize([text])[0].numpy()][: MAX_TOKENS - 1]
            for tokenizer, text in zip(tokenizers, self.val_pairs[0], strict=True)
        )
        frame = translator.frame
        source, target_in, target_out = (
            frame.source(source),
            frame.target_inputs(target),
            frame.targets(target),
        )
        inputs = {"source": np.array([source]), "target": np.array([target_in])}
        _, scores = model(inputs, training=False, return_attention_scores=True)
        if not self._maps:
            source, target_in, target_out = (
                [tokenizer.pieces([i])[0] if i < tokenizer.vocab_size else f"<{i}>" for i in ids]
                for tokenizer, ids in zip(
                    tokenizers + tokenizers[1:], (source, target_in, target_out), strict=True
                )
            )
            labels = {
                "encoder": (source, source),
                "decoder": (target_out, target_in),
                "cross": (target_out, source),
            }
            num_heads = scores["cross"][0].shape[1]
            self._maps = {kind: AttentionMaps(*labels[kind], num_heads) for kind in scores}
        with self._writing("validation"):
            for kind, layers in scores.items():
                for number, layer_scores in enumerate(layers, start=1):
                    image = self._maps[kind].draw(np.asarray(layer_scores[0], "float32"))
                    tf.summary.image(f"translations/{kind}_attention/layer_{number}", image[None])

    def _write_embeddings(self):
        """Writes the files that the projector reads. They replace those of an earlier epoch."""
        folder = self.log_dir / "train"
        model, translator = self.model, self.translator
        tables = {"target": (model.target.tokens, translator.target_tokenizer)}
        if model.source.tokens is not model.target.tokens:
            tables["source"] = model.source.tokens, translator.source_tokenizer
        config = projector.ProjectorConfig()
        for side, (embedding, tokenizer) in tables.items():
            tokens = tokenizer.pieces(range(min(tokenizer.vocab_size, MAX_EMBEDDINGS)))
            vectors, metadata = f"{side}_embedding.tsv", f"{side}_metadata.tsv"
            with replaced(folder / vectors) as temporary:
                np.savetxt(temporary, embedding.embeddings.numpy()[: len(tokens)], "%.5g", delimiter="\t")
            with replaced(folder / metadata) as temporary:
                lines = [
                    "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in t) for t in tokens
                ]
                temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
            config.embeddings.add(
                tensor_name=f"{side}_embedding", tensor_path=vectors, metadata_path=metadata
            )
        projector.visualize_embeddings(str(folder), config)


def _global_norm(gradients):
    # A sparse gradient may have a row twice. Its norm is that of the dense gradient, where the two are added.
    dense = [tf.cast(tf.convert_to_tensor(g), tf.float32) for g in gradients if g is not None]
    return tf.linalg.global_norm(dense)
