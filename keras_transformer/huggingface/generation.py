"""The search that generation_config.json asks for: a strategy, constraints and limits."""

import logging
from pathlib import Path

from keras_transformer.checks import LONGEST, check, printable, short_errors
from keras_transformer.decoding import (
    Beam,
    ExcludeTokens,
    Greedy,
    MinLength,
    NoRepeatNgram,
    RepetitionPenalty,
    Sample,
    SuppressTokens,
)
from keras_transformer.huggingface.files import CONFIG, GENERATION_CONFIG, read_generation_config

log = logging.getLogger(__name__)

# Keys that change the answers in a way that the library does not have, and their values without effect.
REFUSED = {
    "begin_suppress_tokens": (None, []),
    "constraints": (None,),
    "diversity_penalty": (None, 0.0),
    "dola_layers": (None,),
    "encoder_no_repeat_ngram_size": (None, 0),
    "encoder_repetition_penalty": (None, 1.0),
    "epsilon_cutoff": (None, 0.0),
    "eta_cutoff": (None, 0.0),
    "exponential_decay_length_penalty": (None,),
    "force_words_ids": (None,),
    "guidance_scale": (None, 1.0),
    "num_beam_groups": (None, 1),
    "penalty_alpha": (None, 0.0),
    "sequence_bias": (None,),
    "stop_strings": (None,),
    "token_healing": (None, False),
    "top_h": (None,),
    "watermarking_config": (None,),
}
# Keys that are read here or elsewhere, or that change no answer. config.json may have them too.
KNOWN = {
    *(
        "max_length",
        "max_new_tokens",
        "min_length",
        "min_new_tokens",
        "early_stopping",
        "do_sample",
        "num_beams",
    ),
    *("temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty", "length_penalty"),
    *(
        "no_repeat_ngram_size",
        "bad_words_ids",
        "renormalize_logits",
        "suppress_tokens",
        "num_return_sequences",
    ),
    *("forced_bos_token_id", "forced_eos_token_id", "pad_token_id", "bos_token_id", "eos_token_id"),
    *("decoder_start_token_id", "use_cache", "cache_implementation", "output_attentions", "output_scores"),
    *("output_hidden_states", "output_logits", "return_dict_in_generate", "transformers_version"),
    *("_from_model_config", "remove_invalid_values", "low_memory", "disable_compile", "is_assistant"),
    *("num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold"),
    *("assistant_lookbehind", "target_lookbehind", "assistant_early_exit", "prefill_chunk_size"),
}


@short_errors()
def search_options(folder, model):
    """Reads the search of a checkpoint, from generation_config.json or, where there is none, from config.json.

    A warning names each key that is not taken over just as it is.

    Args:
        folder: A path of the checkpoint.
        model: The model, whose padding, ends and positions count.

    Returns:
        A dict of arguments of a `Translator` or a `TextGenerator`: `strategy`, `constraints` and `max_length`.

    Raises:
        ValueError: If the search cannot be had here.

    >>> import tempfile
    >>> from pathlib import Path
    >>> folder = tempfile.mkdtemp()
    >>> _ = Path(folder, "generation_config.json").write_text('{"max_new_tokens": 40, "no_repeat_ngram_size": 3}')
    >>> search_options(folder, model=None)["max_length"]
    40
    """
    config = read_generation_config(folder)
    file = GENERATION_CONFIG if (Path(folder) / GENERATION_CONFIG).is_file() else CONFIG
    from_file = config if file == GENERATION_CONFIG else {}
    for key, neutral in REFUSED.items():
        rule = f"`{key}` of {file} must be {neutral[-1]!r}: the library has no such search."
        check(
            config.get(key) in neutral,
            f"{rule} Remove the key to search without it.",
            **{key: config.get(key)},
        )
    # A language model continues a prompt, whose tokens transformers counts.
    continues = not hasattr(model, "encoder")
    try:
        notes = [
            f"{printable(key, LONGEST)} is not known"
            for key in from_file
            if key not in KNOWN and key not in REFUSED
        ]
        strategy = _strategy(config, notes)
        _check_ends(config, continues, strategy, notes)
        options = {
            "strategy": strategy,
            "constraints": _constraints(config, strategy, None if continues else model.bos_id, notes),
            "max_length": _max_length(config, continues, getattr(model, "max_positions", None), notes),
        }
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{file} of {folder} is damaged. Received: {error!r:.200}.") from None
    if notes:
        log.warning("the search of %s is taken over, but: %s", file, "; ".join(notes))
    return options


def _check_ends(config, continues, strategy, notes):
    """Raises `ValueError` for a forced last token that ends no output, and notes what else is different."""
    ends, forced = _ids(config.get("eos_token_id")), _ids(config.get("forced_eos_token_id"))
    if not ends:
        notes.append("eos_token_id is missing, so transformers writes up to the limit; here an output ends")
    rule = "`forced_eos_token_id` must be an id of an end: the library has no other forced last token."
    check(not ends or set(forced) <= set(ends), rule, forced_eos_token_id=forced, eos_token_id=ends)
    if forced and isinstance(strategy, Beam):
        notes.append("forced_eos_token_id: a beam ranks an output at its limit without its end")
    if config.get("forced_bos_token_id") is not None:
        if continues:
            notes.append("forced_bos_token_id is not read: it holds for prompts of one token")
        elif isinstance(strategy, Beam):
            notes.append("forced_bos_token_id: a beam ranks an output with the probability of that token")


def _ids(value):
    """Returns one id, several or None as a list."""
    return value if isinstance(value, list) else [] if value is None else [value]


def _strategy(config, notes):
    """Returns the `Strategy`, and adds what is different to the notes."""
    width, samples = config.get("num_beams") or 1, bool(config.get("do_sample"))
    check(width == 1 or not samples, "`do_sample` must be False with `num_beams`.", num_beams=width)
    count = config.get("num_return_sequences") or 1
    if samples:
        names = ("temperature", "top_p", "min_p", "typical_p")
        given = {name: config[name] for name in names if config.get(name) is not None}
        top_k = config.get("top_k")
        return Sample(top_k=50 if top_k is None else top_k, num_samples=count, **given)
    if width == 1:
        rule = "`num_return_sequences` must be 1 without beams or samples."
        check(count == 1, rule, num_return_sequences=count)
        return Greedy()
    penalty, stopping = config.get("length_penalty"), config.get("early_stopping") or False
    penalty = 1.0 if penalty is None else penalty
    if stopping != "never" and not (stopping is False and penalty == 0):
        notes.append(
            f"early_stopping={stopping} ends a beam search sooner there; here it goes on until no output can be better"
        )
    return Beam(width, float(penalty), min(count, width), "length")


def _constraints(config, strategy, start_id, notes):
    """Returns the list of constraints; `start_id` is the token before an output, None where a prompt is there."""
    constraints, continues = [], start_id is None
    prompt = " of the output alone" if continues else " of the output without its start token"
    penalty, size = config.get("repetition_penalty"), config.get("no_repeat_ngram_size")
    if penalty not in (None, 1.0):
        in_beams = ", and lowers logits, not log probabilities" if isinstance(strategy, Beam) else ""
        notes.append(f"repetition_penalty counts the tokens{prompt}{in_beams}")
        constraints.append(RepetitionPenalty(penalty))
    if size:
        constraints.append(NoRepeatNgram(size))
        if continues:
            notes.append(f"no_repeat_ngram_size counts the tokens{prompt}")
    shortest, new = config.get("min_length") or 0, config.get("min_new_tokens") or 0
    if continues and shortest and not new:
        notes.append("min_length counts the prompt there, and is not read; set min_new_tokens")
        shortest = 0
    shortest = new + 1 if new else 0 if continues else shortest
    if shortest > 1:
        constraints.append(MinLength(shortest))
    words = config.get("bad_words_ids") or ()
    check(
        all(len(word) == 1 for word in words), "`bad_words_ids` must be single tokens.", bad_words_ids=words
    )
    # transformers leaves the ids of an end out.
    ends = _ids(config.get("eos_token_id"))
    words = [word[0] for word in words if word[0] not in ends]
    if config.get("renormalize_logits"):
        if constraints or config.get("suppress_tokens"):
            notes.append("renormalize_logits holds for bad_words_ids alone")
        constraints += [ExcludeTokens(words)] if words else []
        words = []
    words = [*words, *(config.get("suppress_tokens") or ())]
    if size == 1 and not continues:
        # transformers counts the start token as the first of an output.
        words.append(start_id)
    return [*constraints, SuppressTokens(words)] if words else constraints


def _max_length(config, continues, positions, notes):
    """Returns the largest number of tokens of an output, an int or None."""
    longest, new = config.get("max_length"), config.get("max_new_tokens")
    if continues:
        if new is None and longest is not None:
            notes.append("max_length counts the prompt there, and is not read; set max_new_tokens")
    elif new is None and longest is not None:
        # In transformers the start token counts.
        new = longest - 1
    if new is None:
        return None
    if config.get("forced_eos_token_id") is not None:
        # The last token is the end.
        new = max(1, new - 1)
    return new if continues or positions is None else min(new, positions)
