"""The signature whose rows have options of their own: a prefix, lengths, a temperature, a seed."""

import dataclasses

import tensorflow as tf

from keras_transformer.decoding import Sample
from keras_transformer.decoding.hypotheses import one_of
from keras_transformer.masks import lengths_of
from keras_transformer.request_options import OPTIONS, SIGNATURE, columns
from keras_transformer.serving.rows import Output, Signatures


def option_specs():
    """Returns the `tf.TensorSpec` of each option, a dict by name."""
    return {name: tf.TensorSpec((None,), option.dtype, name=name) for name, option in OPTIONS.items()}


class OptionsSignatures(Signatures):
    """Base class of signatures with options for each row."""

    def search_with_options(self, source, prefix, max_length, min_length, temperature, top_p, seed):
        """Searches outputs. The options of a row change no other row.

        A row with an unusable option gets no token, and its error names the option. The limit of a row is the
        servable's `max_length`; without one it is the length that the row's text may have without any option. So no
        option makes a row cost more than the operator or the text allows.

        Args:
            source: int32 `(batch, source_len)`.
            prefix: The first tokens of each output, int32 `(batch, prefix_len)`, and which prefixes were cut, bool
                `(batch,)`. None for a language model.
            max_length: Largest number of tokens of each output, prefix and eos included, int32 `(batch,)`; 0 for the
                limit of the row.
            min_length: Smallest number of tokens of each output, eos included, int32 `(batch,)`.
            temperature: 0 for greedy search; above 0, tokens are drawn. float32 `(batch,)`.
            top_p: Share of the probability that tokens are drawn from, float32 `(batch,)`; 1 for all of it.
            seed: The same seed and source draw the same output, int64 `(batch,)`.

        Returns:
            Tokens, int32 `(batch, 1, target_len)`; scores, float32 `(batch,)`; a dict of `error`, string `(batch,)`,
            empty for a row without an error, and `ended`, bool `(batch,)`, False for an output that was cut at the
            largest length of its row and for a row with an error.
        """
        servable, model = self._servable, self._model
        options = {
            "max_length": max_length,
            "min_length": min_length,
            "temperature": temperature,
            "top_p": top_p,
            "seed": seed,
        }
        for name, values in options.items():
            rows = tf.shape(source)[0]
            tf.debugging.assert_equal(tf.shape(values)[0], rows, f"`{name}` must have a value for each text.")
        lengths = lengths_of(source, model.pad_id)
        prefix_ids, prefix_cut = (None, False) if prefix is None else prefix
        prefix_lengths = 0 if prefix is None else lengths_of(prefix_ids, model.pad_id)
        longest = servable.longest_output
        usual = servable.limits.of_rows(lengths, prefix_lengths)
        # A text without tokens is answered with options too.
        highest = tf.minimum(servable.limits.of_rows(tf.maximum(lengths, 1), prefix_lengths), longest)
        limits = tf.where(max_length > 0, max_length, tf.minimum(tf.maximum(usual, min_length), highest))
        wrong = {
            name: ~_in_range(options[name], OPTIONS[name])
            for name in options
            if OPTIONS[name].low is not None
        }
        wrong["max_length"] |= limits > highest
        wrong["min_length"] |= min_length > limits
        if prefix is not None:
            unknown = servable.target_tokenizer.is_unknown(prefix_ids) & (prefix_ids != model.pad_id)
            wrong["prefix"] = prefix_cut | (prefix_lengths > limits) | tf.reduce_any(unknown, axis=1)
        error = tf.fill(tf.shape(lengths), "")
        for name, rows in wrong.items():
            error = tf.where(rows, f"`{name}` must be {OPTIONS[name].rule}.", error)
        usable = error == ""

        # An unusable row gets the options of a row that asks for nothing.
        def usable_or(neutral, values):
            return tf.where(usable, values, tf.cast(neutral, values.dtype))

        rows = {
            "max_length": usable_or(0, limits),
            "min_length": usable_or(0, min_length),
            "temperature": usable_or(0, temperature),
            "top_p": usable_or(1, top_p),
            # All 64 bits count. A seed from 0 to 2**31 - 1 stays as it is.
            "seed": tf.cast((seed ^ seed // 2**31 ^ seed // 2**62) & 0x7FFFFFFF, tf.int32),
        }
        inputs = {"source": source, **rows}
        if prefix is not None:
            inputs["prefix"] = tf.where(usable[:, None], prefix_ids, model.pad_id)
        strategy = servable.strategy if isinstance(servable.strategy, Sample) else Sample()
        strategy = dataclasses.replace(strategy, seed=None, num_samples=1)

        def search(*values):
            given = dict(zip(inputs, values, strict=True))
            compiled = self._source_lengths is not None
            target_len = longest if compiled else tf.maximum(1, tf.reduce_max(given["max_length"]))
            return model.search(
                strategy=strategy, target_len=target_len, constraints=servable.constraints, **given
            )

        with self._computing():
            tokens, found_lengths, scores = self._in_chunks(
                self._compiled_step(search),
                list(inputs.values()),
                [Output((1, longest), model.pad_id), Output((1,), 0), Output((1,), 0.0)],
                self._batch_sizes[-1],
            )
        # A text without tokens gets its prefix alone.
        ended = self.which_ended(tokens, found_lengths, limits)[:, 0] | (lengths == 0)
        notes = {"error": error, "ended": usable & ended}
        return tokens[:, :, : tf.maximum(1, tf.reduce_max(found_lengths))], scores[:, 0], notes

    def which_ended(self, tokens, lengths, limits):
        """Says which outputs are complete: they were not cut at their limit.

        Args:
            tokens: int32 `(batch, n_best, target_len)`.
            lengths: The number of tokens of each output, int32 `(batch, n_best)`.
            limits: The largest number of tokens of each row, int32 `(batch,)`, or an int for all.

        Returns:
            bool `(batch, n_best)`.
        """
        model, limits = self._model, tf.broadcast_to(limits, tf.shape(lengths)[:1])[:, None]
        last = tf.gather(tokens, tf.maximum(lengths - 1, 0), batch_dims=2)
        # A constraint may end an output below its limit.
        return one_of(last, (model.eos_id, *model.stop_ids)) | (lengths < limits)


def options_request(texts):
    """Returns the warm-up request of the signature, which draws, for a list of str."""
    return SIGNATURE, {"text": texts, **columns(len(texts), temperature=1.0, top_p=0.9, seed=1)}


def _in_range(values, option):
    fits = (values > option.low) if option.above else (values >= option.low)
    return fits & (values <= (values.dtype.max if option.high is None else option.high))
