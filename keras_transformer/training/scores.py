"""Scores of translations, by sacreBLEU."""

from sacrebleu.metrics import BLEU, CHRF


def check_tokenize(name):
    """Raises `ValueError` unless sacreBLEU has a tokenizer of this name."""
    if name not in BLEU.TOKENIZERS:
        raise ValueError(f"`tokenize` must be one of {sorted(BLEU.TOKENIZERS)}. Received: tokenize={name!r}.")


def corpus_scores(translations, references, **bleu_arguments):
    """BLEU and chrF of a corpus (Post, 2018, "A Call for Clarity in Reporting BLEU Scores").

    Args:
        translations: List of str.
        references: List of str, one for each.
        **bleu_arguments: What `sacrebleu.metrics.BLEU` takes, such as `tokenize="none"`.

    Returns:
        A dict: "bleu" and "chrf", in percent, and "bleu_signature" and "chrf_signature".

    Raises:
        ValueError: If the lists are empty or their lengths differ, or sacreBLEU has no such tokenizer.
    """
    if len(translations) != len(references) or not references:
        raise ValueError(
            "`translations` and `references` must be as long, and not empty. "
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
