"""Scores of translations, computed by sacreBLEU."""

from sacrebleu.metrics import BLEU, CHRF

from keras_transformer.checks import check_choice


def check_tokenize(tokenize="13a"):
    """Raises `ValueError` unless sacreBLEU has a tokenizer of this name, and what the tokenizer needs is installed.

    Args:
        tokenize: A str. The default is that of sacreBLEU.

    Raises:
        ValueError: If there is no such tokenizer, and then the message lists all names; or if it cannot be loaded.
    """
    check_choice(sorted(BLEU.TOKENIZERS), tokenize=tokenize)
    try:
        BLEU(tokenize=tokenize)
    except (ImportError, OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"`tokenize` must be a tokenizer that is installed. Received: tokenize={tokenize!r}: {reason}"
        ) from None


def corpus_scores(translations, references, **bleu_arguments):
    """Computes BLEU and chrF of a corpus (Post, 2018, "A Call for Clarity in Reporting BLEU Scores").

    Args:
        translations: List of str.
        references: List of str, one for each translation.
        **bleu_arguments: Arguments of `sacrebleu.metrics.BLEU`, such as `tokenize="none"`.

    Returns:
        A dict: `bleu` and `chrf`, float from 0 to 100, and sacreBLEU's signatures `bleu_signature` and
        `chrf_signature`, str.

    Raises:
        ValueError: If the lists are empty or their lengths differ, or sacreBLEU has no tokenizer of this name.

    >>> scores = corpus_scores(["a b c d e f"], ["a b c d e g"])
    >>> round(scores["bleu"], 2)  # 100 * (5/6 * 4/5 * 3/4 * 2/3) ** (1/4)
    75.98
    """
    if len(translations) != len(references) or not references:
        raise ValueError(
            "`translations` and `references` must have the same length, and not be empty. "
            f"Received: {len(translations)} and {len(references)} sentences."
        )
    tokenize = bleu_arguments.get("tokenize")
    if tokenize is not None:
        check_tokenize(tokenize)
    scores = {}
    for name, metric in (("bleu", BLEU(**bleu_arguments)), ("chrf", CHRF())):
        scores[name] = metric.corpus_score(translations, [references]).score
        scores[f"{name}_signature"] = str(metric.get_signature())
    return scores
