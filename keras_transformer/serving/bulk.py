"""Translates any number of lines: from an iterable, or a file, which continues after a kill."""

import collections
import hashlib
import itertools
import json
import logging
import sys
from pathlib import Path

import tqdm

from keras_transformer.checks import check, check_positive, warn
from keras_transformer.data import stream_lines
from keras_transformer.data.unknown import UnknownTokens
from keras_transformer.serving.graph.weights import fingerprint
from keras_transformer.serving.journal import Progress, Unfinished
from keras_transformer.serving.writer import count_empty, warn_of_empty
from keras_transformer.termination import Terminated, Termination

log = logging.getLogger(__name__)

# A window of this many bytes ends, even if it has fewer lines than it may have.
WINDOW_BYTES = 2**23
# Every working translator can translate this text.
PROBE = b"a"
# Seconds between two lines of the progress bar, if stderr is not a terminal.
SECONDS_BETWEEN_REPORTS = 30


def translate_lines(translator, lines, batch_size=32, window=4096, verbose=False, report=None):
    """Translates lines one for one, in their order.

    It reads a window of lines, translates it in batches of similar length, and yields the translations; then it reads
    the next window. If a line cannot be translated, its translation is empty, and there is a warning.

    Args:
        translator: A `Translator`, or an object with its `translate_batch`, `token_lengths`, `count_cut`,
            `warn_if_cut` and `source_tokenizer`.
        lines: Iterable of str, or of UTF-8 bytes.
        batch_size: Number of lines at once.
        window: Number of lines to read before they are translated; fewer if they are long.
        verbose: Whether to show progress on stderr.
        report: A function that is called once, after the last line, with a named tuple of the numbers of `lines`, of
            their bytes (`size`), of lines whose source was `cut`, and of lines that `failed`. None for no call.

    Returns:
        An iterator of str without line ends.

    Raises:
        ValueError: If `batch_size` or `window` is not positive.
    """
    check_positive(batch_size=batch_size, window=window)
    return _translations(translator, lines, batch_size, window, verbose, report)


def translate_file(
    translator, source, output, *, batch_size=32, window=4096, restart=False, say=print, verbose=False
):
    """Translates a file line by line. After a kill, the same call continues where the work stopped.

    While it runs, the lines are in the folder `NAME.partial` next to the output, with a journal that is written with
    each window. The output appears when it is complete. It is the same byte for byte, on one machine, however often the
    work was killed, unless the translator draws other samples in each call. On SIGTERM it stops after the current
    batch; the same call translates the current window again.

    Args:
        translator: A `Translator`.
        source: Path of a file, plain or `.gz`, with one sentence on each line. It may hold any bytes. Of a line longer
            than a mebibyte, only the first mebibyte is translated.
        output: Path of the translations, UTF-8; must not exist.
        batch_size: Number of lines at once.
        window: Number of lines to translate and save together; fewer if they are long. The lines of a batch have
            similar length within a window: large windows translate faster, small windows lose less work in a kill.
        restart: Whether to begin again if an earlier call left the lines of another translation.
        say: A function of a str, called with each message.
        verbose: Whether to show progress on stderr: lines, lines per second, time left.

    Returns:
        A named tuple of the numbers of `lines`, of their bytes (`size`), of lines whose source was `cut`, and of lines
        that `failed` and are empty.

    Raises:
        ValueError: If `source` is not a file, cannot be read or changes while it is translated, `output` exists,
            another process writes it, or an earlier call left the lines of another translation; then the message names
            the differences.
        OSError: If the disk is full. The same call continues when there is room.
        Terminated: If SIGTERM came. The same call continues.
    """
    check_positive(batch_size=batch_size, window=window)
    source, unfinished = Path(source), Unfinished(output)
    check(source.is_file(), "`source` must be a file.", source=str(source))
    before, notes = _Source(source), _Notes(translator)
    _consume(before)
    job = {**before.fingerprint(), **_fingerprint(translator), "batch_size": batch_size, "window": window}
    with Termination() as termination, unfinished.opened(job, restart) as is_under_way:
        done = unfinished.progress.lines
        if not is_under_way:
            say(f"{unfinished.output}: nothing to do, {done} lines are done.")
            return unfinished.progress
        say(f"{unfinished.output}: {done} of {before.count} lines are done{', going on' if done else ''}.")
        with _progress_bar(verbose, before.count, done) as bar:

            def after_batch(number):
                bar.update(number)
                if termination.requested:
                    saved = f"{unfinished.progress.lines} of {before.count} lines; they are saved"
                    raise Terminated(f"stopped after {saved}")

            try:
                now = _Source(source)
                lines = iter(now)
                _consume(itertools.islice(lines, done))
                for texts in _windows(lines, window):
                    first = unfinished.progress.lines + 1
                    translated = _translate_window(translator, texts, first, batch_size, after_batch)
                    notes.add(texts, *translated)
                    unfinished.append(*translated)
                rule = "`source` must not change while it is translated."
                check(now.fingerprint() == before.fingerprint(), rule, source=str(source))
                unfinished.finish()
            except Terminated:
                raise
            except BaseException:
                say(f"{unfinished.progress.lines} of {before.count} lines are saved in {unfinished.folder}.")
                raise
    log.info(
        "translated",
        extra={"file": str(output), "lines": before.count, "failed_lines": unfinished.progress.failed},
    )
    translator.warn_if_cut(unfinished.progress.cut, before.count, "sentences")
    notes.warn(before.count - done)
    if unfinished.progress.failed:
        say(
            f"{unfinished.progress.failed} of {before.count} lines could not be translated; their translations are "
            "empty."
        )
    return unfinished.progress


def _translations(translator, lines, batch_size, window, verbose, report):
    lines = (line.encode("utf-8", "surrogatepass") if isinstance(line, str) else line for line in lines)
    done, notes = Progress(), _Notes(translator)
    with _progress_bar(verbose) as bar:
        for texts in _windows(lines, window):
            translations, cut, failed = _translate_window(
                translator, texts, done.lines + 1, batch_size, bar.update
            )
            notes.add(texts, translations, cut, failed)
            size = sum(len(line.encode()) + 1 for line in translations)
            done = done.with_lines(len(texts), size, cut, failed)
            yield from translations
    translator.warn_if_cut(done.cut, done.lines, "sentences")
    notes.warn(done.lines)
    if report is not None:
        report(done)


class _Notes:
    """What the lines of one call hold that cannot be read, and how many of their translations were cut or are empty.

    Args:
        translator: As in `translate_lines`. One without `count_unended` does not say which translations were cut, and
            its lines may be empty.
    """

    def __init__(self, translator):
        self._translator = translator
        self._unknown = UnknownTokens(translator.source_tokenizer)
        self._empty = 0
        # It forgets the translations of earlier calls.
        self._count_unended()

    def _count_unended(self):
        return self._translator.count_unended() if hasattr(self._translator, "count_unended") else 0

    def add(self, texts, translations, cut, failed):
        """Counts unknown tokens in further lines, a list of bytes, and what `_translate_window` gave for them."""
        self._unknown.add(texts, self._translator.source_tokenizer.tokenize(texts))
        self._empty += count_empty(texts, translations) - failed

    def warn(self, count):
        """Warns, for `count` lines of this call. It is called when all of them are translated."""
        if self._unknown.invalid:
            warn(
                f"{self._unknown.invalid:,} of {count:,} lines are not UTF-8. Their wrong bytes are read as U+FFFD."
            )
        warning = self._unknown.warning(count, "lines")
        if warning:
            warn(warning)
        if unended := self._count_unended():
            self._translator.warn_if_unended(unended, count)
        if hasattr(self._translator, "count_unended"):
            warn_of_empty(self._empty, count)


def _consume(iterable):
    collections.deque(iterable, maxlen=0)


def _windows(lines, window):
    """Yields lists of at most `window` lines. A list ends early when it has `WINDOW_BYTES`."""
    texts, size = [], 0
    for line in lines:
        texts.append(line)
        size += len(line)
        if len(texts) == window or size >= WINDOW_BYTES:
            yield texts
            texts, size = [], 0
    if texts:
        yield texts


def _translate_window(translator, texts, first, batch_size, after_batch):
    """Translates a window in batches of similar length.

    Args:
        translator: A `Translator`.
        texts: List of bytes.
        first: Number of the first line, for warnings.
        batch_size: Number of lines at once.
        after_batch: A function of the number of lines of a batch, called after each.

    Returns:
        A list of str, one line for each text; the number of texts that were cut; the number of texts that could not be
        translated.
    """
    lengths = translator.token_lengths(texts)
    by_length = lengths.argsort(kind="stable")
    translations, failed = [""] * len(texts), 0
    for start in range(0, len(texts), batch_size):
        rows = by_length[start : start + batch_size].tolist()
        results = _translate_batch(translator, [texts[row] for row in rows])
        for row, result in zip(rows, results, strict=True):
            if isinstance(result, Exception):
                failed += 1
                reason = (str(result).strip() or repr(result)).splitlines()[0]
                warn(f"line {first + row} failed and is left empty: {reason}")
            else:
                translations[row] = " ".join(result.splitlines())
        after_batch(len(rows))
    return translations, translator.count_cut(texts, lengths), failed


def _translate_batch(translator, texts):
    """Translates texts: returns a list with the translation of each, or the error that it raised.

    If every text raises an error and the translator cannot translate anything else either, the error is raised.
    """
    results = _translate_halves(translator, texts)
    if all(isinstance(result, Exception) for result in results):
        try:
            translator.translate_batch([PROBE])
        except Exception:
            raise results[0] from None
    return results


def _translate_halves(translator, texts):
    """Translates texts. If that fails, translates each half, and so on down to single texts."""
    try:
        return translator.translate_batch(texts)
    except Exception as error:
        if len(texts) == 1:
            return [error]
        half = len(texts) // 2
        return _translate_halves(translator, texts[:half]) + _translate_halves(translator, texts[half:])


def _progress_bar(verbose, total=None, done=0):
    return tqdm.tqdm(
        total=total,
        initial=done,
        unit=" lines",
        disable=not verbose,
        leave=False,
        # The mean speed: lines get longer within a window, so the current speed falls.
        smoothing=0,
        mininterval=0.1 if sys.stderr.isatty() else SECONDS_BETWEEN_REPORTS,
    )


class _Source:
    """The lines of a file. It counts the lines that were read, and computes their hash.

    Args:
        path: Path of the file, plain or `.gz`.
    """

    def __init__(self, path):
        self.path = path
        self.count = 0
        self.digest = hashlib.sha256()

    def __iter__(self):
        for line in stream_lines(self.path):
            self.count += 1
            self.digest.update(line + b"\n")
            yield line

    def fingerprint(self):
        return {"source_lines": self.count, "source": self.digest.hexdigest()}


def _fingerprint(translator):
    """Describes everything that translations depend on, as a dict of JSON; large parts as hashes."""
    config = {name: value for name, value in translator.model.get_config().items() if name != "name"}

    def digest(content):
        return hashlib.sha256(content).hexdigest()

    def tokenizer_digest(tokenizer):
        return f"{type(tokenizer).__name__} {digest(tokenizer.content)}"

    return {
        "model": digest(json.dumps(config, sort_keys=True, default=repr).encode()),
        "weights": fingerprint(translator.model),
        "source_tokenizer": tokenizer_digest(translator.source_tokenizer),
        "target_tokenizer": tokenizer_digest(translator.target_tokenizer),
        **translator.describe(),
        "sentences_of": getattr(translator, "language", None),
        "terms": getattr(translator, "terms", None),
    }
