"""A progress bar for `fit`."""

import sys
import time

import keras
import tqdm

LINE_SECONDS = 60  # between lines, where there is no bar


class Progress(keras.callbacks.Callback):
    """Shows one progress bar for the whole training, and writes one line after each epoch.

    The bar shows the loss and metrics, target tokens a second, and the time left. A file that is no terminal gets
    lines only, and within an epoch one each minute.

    Args:
        steps: Number of steps in an epoch.
        tokens: Number of real target tokens in an epoch.
        file: Where to write, a text file; standard error when None.
        first_step: Number of steps of the first epoch that an earlier call of `fit` did.
        epochs: Number of epochs of the whole training; the `epochs` of `fit` when None.
        say: A function that is called with each line, a str. None to write it to `file`.

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

    def on_epoch_begin(self, epoch, logs=None):
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
                disable=None,  # no bar where there is no terminal
                leave=False,
            )
            self.line_time = time.perf_counter()
        self.epoch = epoch
        self.start_time = time.perf_counter()
        self.training_seconds = None

    def on_train_batch_end(self, batch, logs=None):
        self.bar.update()
        now = time.perf_counter()
        speed = f"{self.tokens * (batch + 1) / self.steps / (now - self.start_time):,.0f} tokens/s"
        if not self.bar.disable and logs:
            self.bar.set_postfix_str(f"{speed}  {_format(logs)}", refresh=False)
        elif self.bar.disable and now - self.line_time >= LINE_SECONDS and batch < self.epoch_steps - 1:
            self.line_time = now
            done = (self.epoch + 1) * self.steps - self.epoch_steps + batch + 1
            (self.say or self._write)(
                f"step {done:,}/{self.epochs * self.steps:,}  {_format(logs or {})}  {speed}"
            )
        if batch == self.epoch_steps - 1:
            self.training_seconds = time.perf_counter() - self.start_time  # without the validation

    def on_epoch_end(self, epoch, logs=None):
        self.line_time = time.perf_counter()
        total_seconds = self.line_time - self.start_time
        seconds = self.training_seconds or total_seconds
        line = (
            f"epoch {epoch + 1}/{self.epochs}  {_format(logs or {})}  "
            f"{self.tokens * self.epoch_steps / self.steps / seconds:,.0f} tokens/s  {total_seconds:.0f} s"
        )
        with tqdm.tqdm.external_write_mode(
            self.file
        ):  # without the bar, which is drawn again behind the line
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
