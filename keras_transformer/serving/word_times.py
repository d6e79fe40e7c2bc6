"""When each word of a transcript is said: what the decoder attends to while it writes it."""

import tensorflow as tf

# A median over so many places removes single outliers.
MEDIAN = 7
# Languages that are written without blanks: each character may begin a word.
WITHOUT_BLANKS = ("ja", "km", "lo", "my", "th", "yue", "zh")


def token_times(scores, begin, places):
    """Says which places of a recording each token of its transcript is about.

    Radford et al., 2022 (Whisper), and the program of that paper: the scores of heads that follow the audio are
    standardised over the tokens, smoothed, and averaged; dynamic time warping (Sakoe and Chiba, 1978) then finds the
    best path through all tokens and places, in their order.

    Args:
        scores: float32 `(heads, tokens, places)`, the attention of each token to the places of the recording, with
            those of the prompt before the transcript and of the token that ends it.
        begin: Number of the last token of the prompt, which attends to what the first token writes; int32 scalar.
        places: Number of places that are there, int32 scalar.

    Returns:
        int32 `(tokens - begin - 1,)`, the place where each token begins; the last one is where the transcript ends.
    """
    # The smoothing mirrors three places at each end.
    places = tf.minimum(tf.maximum(places, MEDIAN // 2 + 1), tf.shape(scores)[2])
    scores = scores[:, :, :places]
    mean, variance = tf.nn.moments(scores, axes=[1], keepdims=True)
    scores = tf.math.divide_no_nan(scores - mean, tf.sqrt(variance))
    edge = MEDIAN // 2
    padded = tf.pad(scores, [[0, 0], [0, 0], [edge, edge]], "REFLECT")
    windows = tf.stack([padded[..., i : i + places] for i in range(MEDIAN)], axis=-1)
    smooth = tf.reduce_min(tf.math.top_k(windows, MEDIAN - edge, sorted=False).values, axis=-1)
    return warped(-tf.reduce_mean(smooth, axis=0)[begin:-1])


def spans_of(begins, count):
    """Returns the begin and the end of each token, float32 `(count, 2)`.

    Args:
        begins: int32 `(n + 1,)`, what `token_times` returned for the first `n` tokens.
        count: Number of tokens, an int32 scalar; those beyond `n` are where the others end.

    >>> spans_of([0, 3, 5], 3).numpy().tolist()
    [[0.0, 3.0], [3.0, 5.0], [5.0, 5.0]]
    """
    begins = tf.cast(begins, tf.float32)
    begins = tf.concat([begins, tf.fill((count + 1 - tf.size(begins),), begins[-1])], axis=0)
    return tf.stack([begins[:-1], begins[1:]], axis=1)


def warped(costs):
    """Finds the cheapest path from the first row and column to the last ones, by dynamic time warping.

    A step goes to the next row, to the next column, or to both.

    Args:
        costs: float32 `(rows, columns)`, what each place of a path costs.

    Returns:
        int32 `(rows,)`, the column where the path enters each row.

    >>> warped(tf.constant([[0.0, 0.0, 9.0, 9.0], [9.0, 9.0, 0.0, 9.0], [9.0, 9.0, 9.0, 0.0]])).numpy().tolist()
    [0, 2, 3]
    """
    costs = tf.cast(costs, tf.float64)
    rows, columns = tf.shape(costs)[0], tf.shape(costs)[1]
    numbers, infinite = tf.range(columns), tf.constant(float("inf"), tf.float64)

    def step(i, above, entered, diagonal):
        # A row is entered from the row above, at one column or at the one before; the first row at its first column.
        begin = tf.where(tf.equal(i, 0), tf.zeros_like(infinite), infinite)
        before = tf.concat([begin[None], above[:-1]], axis=0)
        is_diagonal = before < above
        sums = tf.cumsum(costs[i])
        # The cost of entering at each column, less what the row costs up to there.
        entries = tf.where(is_diagonal, before, above) - sums + costs[i]
        lowest = cumulative(tf.minimum, entries)
        is_lowest = tf.equal(entries, lowest)
        entered = entered.write(i, cumulative(tf.maximum, tf.where(is_lowest, numbers, 0)))
        return i + 1, sums + lowest, entered, diagonal.write(i, is_diagonal)

    entered, diagonal = (tf.TensorArray(dtype, rows, element_shape=(None,)) for dtype in (tf.int32, tf.bool))
    _, _, entered, diagonal = tf.while_loop(
        lambda i, *_: i < rows,
        step,
        (0, tf.fill((columns,), infinite), entered, diagonal),
        parallel_iterations=1,
    )

    def back(i, column, path):
        at = entered.read(i)[column]
        return i - 1, at - tf.cast(diagonal.read(i)[at], tf.int32), path.write(i, at)

    path = tf.TensorArray(tf.int32, rows, element_shape=())
    _, _, path = tf.while_loop(
        lambda i, *_: i >= 0, back, (rows - 1, columns - 1, path), parallel_iterations=1
    )
    return path.stack()


def cumulative(smaller, x):
    """Returns the smallest value up to each place, `(n,)`: by steps that double.

    Args:
        smaller: `tf.minimum`, or `tf.maximum` for the largest.
        x: `(n,)`.
    """

    def step(reach, x):
        return 2 * reach, tf.concat([x[:reach], smaller(x[reach:], x[:-reach])], axis=0)

    n = tf.shape(x)[0]
    shapes = (tf.TensorShape(()), tf.TensorShape((None,)))
    return tf.while_loop(lambda reach, _: reach < n, step, (1, x), shape_invariants=shapes)[1]


def words_of(ids, row, times, no_blanks, tokenizer):
    """Puts the tokens of transcripts together into words.

    Args:
        ids: int32 `(n,)`, the tokens of all transcripts, one after another.
        row: The number of each one's transcript, rising, int32 `(n,)`.
        times: When each one begins and ends, float32 `(n, 2)`.
        no_blanks: Whether its language is one of `WITHOUT_BLANKS`, bool `(n,)`.
        tokenizer: The tokenizer of the ids.

    Returns:
        For each word its text, string `(words,)`; its begin and its end, float32; and its row, int32.
    """
    is_first = tf.concat([tf.ones_like(row[:1]), row[1:] - row[:-1]], axis=0)[: tf.size(row)] > 0
    is_first |= begins_word(tf.gather(tokenizer.written(), ids), no_blanks)
    word = tf.cumsum(tf.cast(is_first, tf.int32)) - 1
    text = tf.strings.strip(tokenizer.detokenize(tf.RaggedTensor.from_value_rowids(ids, word)))
    begin, row = tf.boolean_mask(times[:, 0], is_first), tf.boolean_mask(row, is_first)
    return text, begin, tf.math.segment_max(times[:, 1], word), row


def begins_word(texts, no_blanks):
    """Marks the tokens that begin a word: after a blank, or in a language without blanks with a whole character.

    Args:
        texts: string `(n,)`, the bytes that each token adds to a text.
        no_blanks: bool `(n,)`, whether the language is one of `WITHOUT_BLANKS`.
    """
    first = tf.strings.substr(texts, 0, 1)
    blank = tf.strings.regex_full_match(first, r"\s")
    # The other bytes of a character are those from 128 to 191.
    number = tf.cast(
        tf.strings.unicode_decode(first, "ISO-8859-1").to_tensor(shape=(None, 1))[:, 0], tf.int32
    )
    inner = (number >= 0x80) & (number < 0xC0)
    return tf.where(no_blanks, ~inner, blank)
