"""A progress bar for `fit`."""

import sys
import time

import keras
import tqdm

from keras_transformer.execution import native

ONEDNN = (
    "TensorFlow leaves oneDNN's products off on this CPU. Set the environment variable TF_ENABLE_ONEDNN_OPTS=1 before "
    "the start: a step takes about 0.8 times as long."
)
# Seconds after which a file that is not a terminal gets a line within an epoch.
SILENCE = 60


class Progress(keras.callbacks.Callback):
    """Shows one progress bar for the whole training, and writes one line after each epoch.

    The bar shows the loss and metrics, target tokens a second, and the time left. A file that is not a terminal gets
    the lines only, and in a long epoch further lines: after one minute, after two more, after four more, and so on. A
    first line says how to use oneDNN where TensorFlow leaves it off.

    Args:
        steps: Number of steps in an epoch.
        tokens: Number of real target tokens in an epoch.
        file: Where to write, a text file; standard error when None.
        first_step: Number of steps of the first epoch that an earlier call of `fit` did.
        epochs: Number of epochs of the whole training; the `epochs` of `fit` when None.
        say: A function that is called with the line after each epoch, a str. None to write it to `file`.

    Example:

        model.fit(batches.dataset(), steps_per_epoch=batches.steps, epochs=10, shuffle=False, verbose=0,
                  callbacks=[Progress(batches.steps, batches.tokens)])
    """

    def __init__(self, steps, tokens, file=None, first_step=0, epochs=None, say=None):
        super().__init__()
        self.steps = steps
        self.tokens = tokens
        self.file = sys.stderr if file is None else file
        self.first_step = first_step
        self.epochs = epochs
        self.say = say
        self.first_epoch = None

    def on_train_begin(self, logs=None):
        if native.leaves_onednn_off():
            (self.say or self._write)(ONEDNN)

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
        self.epoch_steps = self.steps
        if self.first_epoch is None:
            self.first_epoch = epoch
            self.epochs = self.epochs or self.params["epochs"]
            self.epoch_steps -= self.first_step
            self.bar = tqdm.tqdm(
                total=self.epochs * self.steps,
                initial=epoch * self.steps + self.first_step,
                unit="step",
                smoothing=0.05,
                file=self.file,
                # Without a terminal there is no bar.
                disable=None,
                leave=False,
            )
        self.start_time = time.perf_counter()
        # Seconds since the start of the epoch.
        self.next_line = SILENCE
        self.training_seconds = None

    def on_train_batch_end(self, batch, logs=None):
        self.bar.update()
        seconds = time.perf_counter() - self.start_time
        speed = self.tokens * (batch + 1) / self.steps / seconds
        if self.bar.disable and seconds >= self.next_line and batch < self.epoch_steps - 1:
            self.next_line = 2 * self.next_line + SILENCE
            step = self.steps - self.epoch_steps + batch + 1
            (self.say or self._write)(
                f"epoch {self.epoch + 1}/{self.epochs}, step {step} of {self.steps}  "
                f"{_format(logs or {})}  {speed:,.0f} tokens/s"
            )
        if not self.bar.disable and logs:
            self.bar.set_postfix_str(f"{speed:,.0f} tokens/s  {_format(logs)}", refresh=False)
        if batch == self.epoch_steps - 1:
            self.training_seconds = seconds  # without the validation

    def on_epoch_end(self, epoch, logs=None):
        total_seconds = time.perf_counter() - self.start_time
        seconds = self.training_seconds or total_seconds
        line = (
            f"epoch {epoch + 1}/{self.epochs}  {_format(logs or {})}  "
            f"{self.tokens * self.epoch_steps / self.steps / seconds:,.0f} tokens/s  {total_seconds:.0f} s"
        )
        # It removes the bar, and draws it again after the line.
        with tqdm.tqdm.external_write_mode(self.file):
            (self.say or self._write)(line)

    def _write(self, line):
        print(line, file=self.file, flush=True)

    def on_train_end(self, logs=None):
        self.close()

    def close(self):
        """Removes the bar. Call it after an exception in `fit`, because Keras then skips `on_train_end`."""
        if self.first_epoch is not None:
            self.bar.close()


def _format(logs):
    return "  ".join(f"{name} {float(value):.4g}" for name, value in logs.items())
