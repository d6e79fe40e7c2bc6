"""A text that grows: successive requests, each of which goes on from the text that is written."""

import codecs

from keras_transformer.checks import check, check_positive

OPTIONS = (
    *("temperature", "top_k", "top_p", "min_p", "seed", "stop"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
)
# It stands at the end of an answer that was cut inside a character.
INCOMPLETE = "\ufffd"


class RefusedRequest(ValueError):
    """The server refuses a request."""


class RefusedOptions(RefusedRequest):
    """The server refuses the options of a row.

    Args:
        message: The message.
        option: Name of the option that is wrong, as the server names it.
        reason: What the server says, a part of the message.
    """

    def __init__(self, message, option, reason=""):
        super().__init__(message)
        self.option = option
        self.reason = reason


class Stream:
    """The text of an answer that grows by a few tokens with each request.

    A request has the text so far as its `prefix`, so the model computes only the tokens that are new. A translation's
    `max_length` counts the prefix, that of a continuation does not. Draws depend on the place of a token in a
    translation, so a stream draws what one request with the same seed draws.

    Args:
        text: A str, or UTF-8 bytes.
        tokens: Number of tokens that a request adds.
        max_length: Largest number of tokens of the whole answer.
        options: A dict of the other options of the row.
        logprobs: The number of likeliest tokens whose log probabilities are wanted with those of the answer, or None.
    """

    def __init__(self, text, tokens, max_length, options, logprobs=None):
        check(isinstance(text, (str, bytes)), "`text` must be a str, or UTF-8 bytes.", text=text)
        check_positive(tokens=tokens, max_length=max_length)
        check(
            options.keys() <= set(OPTIONS), f"The options must be {', '.join(OPTIONS)}.", options=[*options]
        )
        self.text = text
        self.options = options if logprobs is None else {**options, "logprobs": logprobs}
        stop = options.get("stop", ())
        stops = [stop] if isinstance(stop, (str, bytes)) else stop
        self._stops = [each.decode("utf-8", "replace") if isinstance(each, bytes) else each for each in stops]
        self.finished = False
        self.written = ""
        # Of the newest answer: whether it is complete and whether the text was cut, and the tokens read and written.
        self.ended = self.truncated = False
        self.source_length = self.length = 0
        # With `logprobs`: the tokens of the newest piece and their log probabilities, `(n, 1 + k)`.
        self.logged = None
        # The warnings that were given.
        self.notes = set()
        self._tokens, self._max_length = tokens, max_length
        # Number of tokens that were asked for.
        self._length = self._first = 0
        # Number of tokens that were asked for when text was added for the last time.
        self._written_length = 0
        # The prefix of the newest request.
        self._prefix = ""
        # Whether the request allows all tokens that the row may have.
        self._whole = False
        # The name of the output with the text. The first answer tells it.
        self._output = None

    def request(self):
        """Returns the next request: its `prefix` and its `max_length`."""
        self._length, self._whole = min(self._length + self._tokens, self._max_length), False
        # The tokens after the written text are computed again: they are not text yet.
        self._first = self._written_length if self._output == "continuation" else 0
        self._prefix = self.written
        return self.written, self._length - self._first

    def request_after(self, request, option):
        """Returns the request in place of a refused one, or None.

        Args:
            request: The refused request, a pair of `prefix` and `max_length`.
            option: Name of the option that the server refuses.
        """
        prefix, max_length = request
        # It is above the limit of the row.
        if option == "max_length" and max_length:
            self._whole = True
            return prefix, 0
        if option == "prefix" and prefix:
            self._whole = True
            # The tokenizer may read the text as more tokens than the model wrote.
            if 0 < max_length < self._max_length:
                return prefix, self._max_length
            # No room is left, or no prefix may hold it: one request writes the whole answer again.
            self._prefix = ""
            return "", self._max_length
        return None

    def add(self, outputs):
        """Takes the outputs of a request, a dict of arrays of one row. Returns the text that it adds, a str."""
        self._output = text_output(outputs)
        text = outputs[self._output][0].decode("utf-8", "replace")
        self.ended = bool(outputs["ended"][0])
        self.finished = self.ended or self._length >= self._max_length
        if "length" in outputs:
            self.length = self._first + int(outputs["length"][0])
            # Later requests read the text that is written, too.
            self.source_length = self.source_length or int(outputs["source_length"][0])
            self.truncated = bool(outputs["truncated"][0])
        self.finished |= self._whole and self._output == "translation"
        new = _rest(self.written, text if self.finished else text.rstrip(INCOMPLETE))
        new = new if self.finished else self._without_begun_stop(new)
        if "logprobs" in self.options:
            # The tokens of a continuation begin after the prefix of its request.
            rest = _rest(self.written, text)
            known = _rest(self._prefix, text) if self._output == "continuation" else text
            begin = len(known) - len(rest)
            whole = new == rest and not self._stops
            end = None if whole else begin + len(new)
            rows = rows_of_text(outputs["logprob_tokens"][0], known, begin, end)
            self.logged = outputs["logprob_tokens"][0][rows], outputs["logprobs"][0][rows]
        if new:
            self.written, self._written_length = self.written + new, self._length
        # The limit of a continuation is that of one request, so the next request may add more, but only to new text.
        self.finished |= self._whole and not new
        return new

    def _without_begun_stop(self, text):
        """Cuts off the end of a text that may be the beginning of a stop string."""
        begun = (stop[:size] for stop in self._stops for size in range(len(stop) - 1, 0, -1))
        return text[: len(text) - max((len(start) for start in begun if text.endswith(start)), default=0)]


def rows_of_text(tokens, text, begin, end):
    """Returns the numbers of the tokens that begin in a part of a text, a list of int.

    >>> rows_of_text([[b" a"], [b"bc"], [b"d"], [b""]], "abcd", 1, 4)
    [1, 2]

    Args:
        tokens: The bytes of each token, and after it those of others in its place, `(n, 1 + k)`.
        text: The text, a str; a blank before its first token may be missing.
        begin: The first character of the part in the text.
        end: The character after its last one; None for the end of the tokens, which may be inside a character.
    """
    written = b"".join(row[0] for row in tokens)
    blank = written.startswith(b" ") and not text.startswith(" ")
    # Characters count, not bytes: each invalid byte is three bytes of the text.
    decoder, done, rows = codecs.getincrementaldecoder("utf-8")("replace"), -blank, []
    for i, row in enumerate(tokens):
        # What has no bytes, such as the end, is no part of the text.
        if row[0]:
            done += len(decoder.decode(row[0][:1]))
            # The character of its first byte, which may have begun before.
            start = done if decoder.getstate()[0] else done - 1
            done += len(decoder.decode(row[0][1:]))
            if begin <= max(start, 0) and (end is None or start < end):
                rows.append(i)
    return rows


def text_output(outputs):
    """Returns the name of the output that holds the text of an answer."""
    return "continuation" if "continuation" in outputs else "translation"


def _rest(prompt, text):
    """Returns the text after the prompt. The prompt's blanks may differ.

    >>> _rest("a  b", "a b c")
    ' c'

    Raises:
        OSError: If the text begins otherwise.
    """
    if text.startswith(prompt):
        return text[len(prompt) :]
    place = 0
    for character in "".join(prompt.split()):
        while text[place : place + 1].isspace():
            place += 1
        if text[place : place + 1] != character:
            raise OSError(
                f"The server must answer with a text that begins with its prefix {prompt!r:.200}. "
                f"Received: {text!r:.200}."
            )
        place += 1
    return text[place:]
