"""The sentences of the checks of arguments: the argument, the rule and the received value."""

import math

import pytest

from keras_transformer import checks

REFUSED = [
    (lambda: checks.check_positive(size=0), "`size` must be a positive integer. Received: size=0."),
    (lambda: checks.check_positive(size=2.0), "`size` must be a positive integer. Received: size=2.0."),
    (lambda: checks.check_positive(size=True), "`size` must be a positive integer. Received: size=True."),
    (lambda: checks.check_share(rate=1.0), "`rate` must be in [0, 1). Received: rate=1.0."),
    (lambda: checks.check_share(rate=-0.1), "`rate` must be in [0, 1). Received: rate=-0.1."),
    (lambda: checks.check_range(0, x=-1), "`x` must be a number at least 0. Received: x=-1."),
    (lambda: checks.check_range(0, x=math.inf), "`x` must be a number at least 0. Received: x=inf."),
    (lambda: checks.check_range(0, x=math.nan), "`x` must be a number at least 0. Received: x=nan."),
    (lambda: checks.check_range(0, above=True, x=0), "`x` must be a number above 0. Received: x=0."),
    (lambda: checks.check_range(0, x="2"), "`x` must be a number at least 0. Received: x='2'."),
    (lambda: checks.check_range(0, 1, x=2), "`x` must be a number at least 0, at most 1. Received: x=2."),
    (lambda: checks.check_count(count=-1), "`count` must be an integer at least 0. Received: count=-1."),
    (lambda: checks.check_count(1, 3, n=4), "`n` must be an integer at least 1, at most 3. Received: n=4."),
    (
        lambda: checks.check_ids(7, pad_id=7),
        "`pad_id` must be an id of the vocabulary, from 0 to 6. Received: pad_id=7.",
    ),
    (lambda: checks.check_choice(["a"], norm="b"), "`norm` must be one of ['a']. Received: norm='b'."),
]


@pytest.mark.parametrize(("check", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_the_sentence_names_argument_rule_and_value(check, message):
    with pytest.raises(ValueError) as caught:
        check()
    assert str(caught.value) == message


def test_values_in_range_pass():
    checks.check_positive(size=1)
    checks.check_share(rate=0, other=0.99)
    checks.check_range(0, 1, x=0, y=1)
    checks.check_range(0, above=True, x=0.1)
    checks.check_count(0, 3, n=0, m=3)
    checks.check_ids(7, pad_id=0, eos_id=6)
    checks.check_choice(["a", None], norm=None)


def test_a_warning_names_the_line_that_called_the_library():
    names = {"warn": checks.warn, "__name__": "keras_transformer.serving.x"}
    inside = eval("lambda: warn('cut')", names)
    # Keras calls the library too, as in `fit`.
    through_keras = eval("lambda f: f()", {"__name__": "keras.src.trainers.trainer"})
    for call in (inside, lambda: through_keras(inside)):
        with pytest.warns(UserWarning, match="cut") as caught:
            call()
        assert [warning.filename for warning in caught] == [__file__]
