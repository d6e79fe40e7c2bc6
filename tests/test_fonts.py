import pytest

from keras_transformer import fonts


@pytest.fixture
def installed(monkeypatch):
    """A function that sets what the fonts of the machine are: a dict from a name to the characters it has."""

    def install(known, found_later=None):
        monkeypatch.setattr(fonts, "_known", lambda: {name: name for name in known})
        later = {**known, **(found_later or {})}
        monkeypatch.setattr(fonts, "_searched", lambda: {name: name for name in later})
        monkeypatch.setattr(fonts, "_has", lambda file, character: character in later[file])

    return install


LATIN = "abc →"


def test_only_fonts_that_are_needed_are_named(installed):
    installed({"A Font": "가나", "DejaVu Sans": LATIN, "NanumGothic": "가나" + LATIN, "Z Font": "語"})
    assert fonts.font_families("abc") == ["DejaVu Sans"]
    assert fonts.font_families("abc", "가나 →") == ["DejaVu Sans", "NanumGothic"]
    assert fonts.font_families("語가") == ["DejaVu Sans", "NanumGothic", "Z Font"]


def test_a_font_that_matplotlib_does_not_know_yet_is_found(installed):
    installed({"DejaVu Sans": LATIN}, {"New Font": "가"})
    assert fonts.font_families("가") == ["DejaVu Sans", "New Font"]


def test_a_missing_font_is_named(installed):
    installed({"DejaVu Sans": LATIN})
    with pytest.warns(UserWarning, match=r"No installed font has '가나'.*pip install koreanize-matplotlib"):
        assert fonts.font_families("나가") == ["DejaVu Sans"]
