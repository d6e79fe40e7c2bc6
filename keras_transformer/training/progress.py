"""Progress of a training run on the terminal."""

import sys
import time

import keras
import tqdm


class Progress(keras.callbacks.Callback):
    """One bar for the whole run, with tokens a second and the time left, and one line an epoch.

    A log file gets the lines alone.

    Args:
        steps: Number of steps in an epoch.
        tokens: Number of real target tokens in an epoch, for the speed shown.
        file: Where to write; standard error when None.
        first_step: How many steps of the first epoch were done before.
        epochs: How many epochs the whole training has; `fit`'s when None.
    """

    def __init__(self, steps, tokens, file=None, first_step=0, epochs=None):
        super().__init__()
        self.steps = steps
        self.tokens = tokens
        self.file = sys.stderr if file is None else file
        self.first_step = first_step
        self.epochs = epochs
        self.first_epoch = None

    def on_epoch_begin(self, epoch, logs=None):
        if self.first_epoch is None:
            self.first_epoch = epoch
            self.epochs = self.epochs or self.params["epochs"]
            self.left = self.steps - self.first_step
            self.bar = tqdm.tqdm(
                total=self.epochs * self.steps,
                initial=epoch * self.steps + self.first_step,
                unit="step",
                smoothing=0.05,
                file=self.file,
                disable=None,  # no bar where there is no terminal
                leave=False,
            )
        else:
            self.left = self.steps
        self.began = time.perf_counter()
        self.trained = None

    def on_train_batch_end(self, batch, logs=None):
        self.bar.update()
        if not self.bar.disable and logs:
            trained = self.tokens * (batch + 1) / self.steps
            speed = trained / (time.perf_counter() - self.began)
            self.bar.set_postfix_str(f"{speed:,.0f} tokens/s  {_values(logs)}", refresh=False)
        if batch == self.left - 1:
            self.trained = time.perf_counter() - self.began

    def on_epoch_end(self, epoch, logs=None):
        now = time.perf_counter()
        seconds = self.trained or now - self.began
        line = (
            f"epoch {epoch + 1}/{self.epochs}  {_values(logs or {})}  "
            f"{self.tokens * self.left / self.steps / seconds:,.0f} tokens/s  {now - self.began:.0f} s"
        )
        self.bar.write(line, file=self.file)
        self.file.flush()

    def on_train_end(self, logs=None):
        self.close()

    def close(self):
        """Takes the bar away; a training that was stopped does not say that it ended."""
        if self.first_epoch is not None:
            self.bar.close()


def _values(logs):
    return "  ".join(f"{name} {float(value):.4g}" for name, value in logs.items())
