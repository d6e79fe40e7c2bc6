import pytest

from keras_transformer.training import corpus_scores


def test_a_short_translation_pays_the_brevity_penalty_of_bleu():
    scores = corpus_scores(["a b c d e"], ["a b c d e f g h i j"])
    assert scores["bleu"] == pytest.approx(100 * 2.718281828459045**-1)


def test_an_exact_translation_has_both_scores_at_100_and_a_foreign_one_at_0():
    for translation, expected in (("a b c d", 100.0), ("x x x x", 0.0)):
        scores = corpus_scores([translation], ["a b c d"])
        assert (scores["bleu"], scores["chrf"]) == pytest.approx((expected, expected))


def test_bleu_is_of_the_corpus_and_not_a_mean_of_sentences():
    translations, references = ["a b c d e f", "x y"], ["a b c d e g", "x z"]
    # 6 of 8, 4 of 6, 3 of 4, 2 of 3.
    expected = 100 * (6 / 8 * 4 / 6 * 3 / 4 * 2 / 3) ** 0.25
    assert corpus_scores(translations, references)["bleu"] == pytest.approx(expected)


def test_chrf_by_hand():
    # Of the characters half match, of the bigrams none; longer n-grams there are none.
    assert corpus_scores(["ab"], ["ac"])["chrf"] == pytest.approx(25.0)


def test_signatures_say_how_the_scores_were_computed():
    scores = corpus_scores(["a"], ["a"])
    assert scores["bleu_signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2")
    assert scores["chrf_signature"].startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:2")


def test_arguments_reach_sacrebleu_and_its_signature():
    scores = corpus_scores(["A B C D"], ["a b c d"], lowercase=True, tokenize="none")
    assert scores["bleu"] == pytest.approx(100.0)
    assert "case:lc" in scores["bleu_signature"] and "tok:none" in scores["bleu_signature"]


@pytest.mark.parametrize("numbers", [(0, 0), (2, 1), (1, 2), (1, 0)])
def test_lists_of_different_lengths_are_refused(numbers):
    translations, references = (["a"] * number for number in numbers)
    with pytest.raises(ValueError, match="Received: {} and {} sentences".format(*numbers)):
        corpus_scores(translations, references)
