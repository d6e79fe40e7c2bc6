import pytest
from contracts import refuses

from keras_transformer.data import hold_out, read_conll, read_table

WORDS = {"0": ("밥", "날씨"), "1": ("이별", "눈물"), "2": ("고백", "사랑")}


@pytest.fixture
def table(tmp_path):
    """A CSV with a comma in its texts, and blanks after one label."""
    path = tmp_path / "talk.csv"
    rows = [
        f'"{word} {word}, {i}번",대답 {i},{label}'
        for label, words in WORDS.items()
        for word in words
        for i in range(2)
    ]
    path.write_text("\n".join(["Q,A,label", *rows]) + "   \n", encoding="utf-8")
    return path


def test_named_columns_are_read_and_errors_say_what_is_wrong(table, tmp_path):
    rows = read_table(table, "label", "Q")
    assert rows[0] == ("0", "밥 밥, 0번")
    assert {label for label, _ in rows} == set(WORDS)  # the blanks are gone
    with_tabs = tmp_path / "talk.tsv"
    with_tabs.write_text('text\tlabel\nan "open quote\ta\n\tb\nc\n', encoding="utf-8")
    assert read_table(with_tabs, "text", "label") == [('an "open quote', "a")]
    for path, columns, message in (
        (tmp_path / "none.csv", ["Q"], "Cannot read .*none.csv"),
        (table, ["Q", "B"], "has no column 'B'; its first line names Q, A, label"),
        (with_tabs, ["label", "other"], "has no column 'other'"),
    ):
        refuses(message, read_table, path, *columns)
    (tmp_path / "bare.csv").write_text("Q,A\n", encoding="utf-8")
    refuses("no row with text in Q and A", read_table, tmp_path / "bare.csv", "Q", "A")


def test_a_comma_without_quotes_ends_no_text_in_silence(tmp_path):
    """The rest of the text was its label."""
    path = tmp_path / "days.csv"
    path.write_text("text,label\nbad day,bad,\ngood day, good night,good\n", encoding="utf-8")
    refuses(
        "days.csv, line 3: a row must have no more columns .* needs quotes", read_table, path, "text", "label"
    )


def test_words_have_any_white_space_but_blanks_and_tabs(tmp_path):
    path = tmp_path / "words.conll"
    path.write_text("10\u00a0000 x B-N\n\u3000\tO\r\n \t\nyes O\n", encoding="utf-8")
    assert read_conll(path) == [(("10\u00a0000", "\u3000"), ("B-N", "O")), (("yes",), ("O",))]


def test_no_text_is_on_both_sides_of_a_split():
    rows = [(str(i % 40), i) for i in range(100)]
    train, held_out = hold_out(rows, 0.25)
    assert sorted(train + held_out) == sorted(rows)
    assert len({text for text, _ in held_out}) == 10
    assert not {text for text, _ in held_out} & {text for text, _ in train}
    assert hold_out(rows, 0.25, seed=2) != (train, held_out) == hold_out(rows, 0.25)
    refuses("Received: 1", hold_out, rows[:1], 0.5)
    refuses(r"share=1\.5", hold_out, rows, 1.5)


def test_each_label_has_its_share_of_what_is_held_out():
    rows = [
        (f"{label}{i}", label)
        for label, count in (("a", 40), ("b", 10), ("c", 3), ("d", 1))
        for i in range(count)
    ]
    train, held_out = hold_out(rows, 0.1, stratified=True)
    assert {label: sum(row[1] == label for row in held_out) for label in "abcd"} == {
        "a": 4,
        "b": 1,
        "c": 1,
        "d": 0,
    }
    assert sorted(train + held_out) == sorted(rows)
    refuses("two or more texts of a label", hold_out, [("x", "a"), ("y", "b")], 0.5, stratified=True)
