"""Fonts that can draw a text. Needs matplotlib (the extra `plots`)."""

import contextlib
import functools
import importlib.util
from pathlib import Path

from keras_transformer.checks import warn

LATIN = "DejaVu Sans"  # comes with matplotlib
# They draw Hangul, hanja, kana and Latin letters alike, so they come before other fonts.
PREFERRED = (
    "Noto Sans CJK KR",
    "Noto Sans KR",
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "NanumGothic",
    "Malgun Gothic",
    "Apple SD Gothic Neo",
    "Arial Unicode MS",
)
# The extra `plots` installs this package for its NanumGothic.
PACKAGED = "koreanize_matplotlib"


def font_families(*texts):
    """Returns the names of installed fonts that together draw some texts, for matplotlib's `font.family`.

    A warning names the characters that no installed font has, and what to install.

    Args:
        *texts: The texts, str.

    Returns:
        A list of str that begins with "DejaVu Sans".

    Raises:
        ImportError: If matplotlib is missing.

    >>> font_families("I am a student")
    ['DejaVu Sans']
    """
    characters = {character for text in texts for character in text if character.isprintable()}
    families, missing = _choose(_known(), characters)
    if missing:
        families, missing = _choose(_searched(), characters)
    if missing:
        shown = "".join(sorted(missing)[:20])
        warn(
            f"No installed font has {shown!r}; a picture shows boxes there. For Hangul run "
            "`pip install koreanize-matplotlib`, or install a font such as Noto Sans KR or NanumGothic."
        )
    return families


def _choose(files, characters):
    """Returns the families that draw some characters, and the characters that none of them has."""
    families, missing = [LATIN], characters
    for name in (LATIN, *(name for name in PREFERRED if name in files), *sorted(files)):
        lacked = {character for character in missing if not _has(files[name], character)}
        if name != LATIN and lacked != missing:
            families.append(name)
        missing = lacked
        if not missing:
            break
    return families, missing


def _known():
    """The file of each font that matplotlib knows, by name."""
    from matplotlib import font_manager

    fonts = {font.name: font.fname for font in reversed(font_manager.fontManager.ttflist)}
    # Apple's "Last Resort" has a box for every character.
    return {name: file for name, file in fonts.items() if not name.startswith("Last Resort")}


@functools.cache
def _searched():
    """The same after a search: matplotlib's list does not have fonts that were installed after it was made."""
    from matplotlib import font_manager

    known = {font.fname for font in font_manager.fontManager.ttflist}
    files = set(font_manager.findSystemFonts())
    package = importlib.util.find_spec(PACKAGED)
    # Its import would change matplotlib's settings for the whole program.
    if package is not None:
        files |= set(map(str, Path(package.origin).parent.glob("fonts/NanumGothic.ttf")))
    for file in sorted(files - known):
        # matplotlib may be unable to read a file.
        with contextlib.suppress(OSError, RuntimeError):
            font_manager.fontManager.addfont(file)
    return _known()


@functools.cache
def _has(file, character):
    """Whether a font file has a character."""
    font = _font(file)
    return font is not None and font.get_char_index(ord(character)) > 0


@functools.cache
def _font(file):
    """Opens a font file; None where it cannot be read."""
    from matplotlib import ft2font

    try:
        return ft2font.FT2Font(file)
    except (OSError, RuntimeError):
        return None
