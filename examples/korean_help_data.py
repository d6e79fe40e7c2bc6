"""Makes the files that `korean_help.py` trains on, from Debian's packages of LibreOffice's help and translations.

    apt-get download libreoffice-help-ko libreoffice-help-en-us libreoffice-l10n-ko
    for package in libreoffice-*.deb; do dpkg-deb --extract "$package" packages; done
    pip install babel lxml
    python examples/korean_help_data.py --packages packages --output libreoffice-ko-en

The texts are LibreOffice's, under the Mozilla Public License 2.0. Paragraphs of the help are aligned by their ids, and
texts of the interface by their message ids. Whole help pages are held out for the validation and for the test: their
sentences of four words and more, none of which is a training pair, too. Nothing is downloaded. Other versions of the
packages give other pairs, so scores are near those of benchmarks/korean_english.md, and not the same.
"""

import argparse
import gzip
import re
import sys
import zlib
from pathlib import Path

import tqdm

HELP, CATALOGUES = "usr/share/libreoffice/help", "usr/lib/libreoffice/program/resource/ko/LC_MESSAGES"
KEYS = re.compile(r"\([_~][A-Za-z0-9]\)|[_~]")  # of a menu: "파일(_F)", "_File"
HANGUL = re.compile("[가-힣]")
HELD_OUT = {0: "val", 1: "test"}  # of `PARTS` pages; the others are for the training
PARTS = 18
FEWEST_WORDS = 4  # of a held-out sentence
LONGEST = 600  # characters
IDS = "//*[self::p or self::h1 or self::h2 or self::h3 or self::h4][@id]"


def paragraphs(file):
    """Returns the texts of a help page by the ids of their paragraphs, a dict."""
    from lxml import html

    page = html.parse(str(file), html.HTMLParser(encoding="utf-8"))
    # Menus have other names on other operating systems, and a page has all of them.
    for other in page.xpath("//*[@hidden and not(starts-with(@id, 'default'))]"):
        other.drop_tree()
    return {each.get("id"): clean(each.text_content()) for each in page.xpath(IDS)}


def interface_texts(file):
    """Yields the pairs of Korean and English of a catalogue of the interface."""
    from babel.messages.mofile import read_mo

    with open(file, "rb") as opened:
        for message in read_mo(opened):
            if isinstance(message.id, str) and isinstance(message.string, str):
                yield tuple(clean(KEYS.sub("", text)) for text in (message.string, message.id))


def clean(text):
    """Returns a text with single spaces."""
    return " ".join(text.split())


def is_pair(korean, english):
    """Returns whether the texts are a translation: a paragraph that nobody translated is English on both sides."""
    return bool(
        HANGUL.search(korean)
        and re.search("[A-Za-z]", english)
        and not HANGUL.search(english)
        and max(len(korean), len(english)) <= LONGEST
    )


def part_of(page):
    """Returns the part that a page belongs to: its name decides, so that other versions divide alike."""
    return HELD_OUT.get(zlib.crc32(page.as_posix().encode()) % PARTS, "train")


def read_pairs(packages):
    """Reads the pairs of each part.

    Args:
        packages: The folder that the packages were extracted into, a path.

    Returns:
        A dict from "train", "val", "test" to a list of Korean and English pairs, each once.
    """
    found = {"train": {}, "val": {}, "test": {}}
    pages = sorted((packages / HELP / "ko").rglob("*.html"))
    for page in tqdm.tqdm(pages, desc="help pages", disable=None):
        name = page.relative_to(packages / HELP / "ko")
        english = paragraphs(packages / HELP / "en-US" / name)
        for key, korean in paragraphs(page).items():
            if is_pair(korean, english.get(key, "")):
                found[part_of(name)].setdefault((korean, english[key]))
    for file in sorted((packages / CATALOGUES).glob("*.mo")):
        found["train"].update((pair, None) for pair in interface_texts(file) if is_pair(*pair))
    val, test = (
        [pair for pair in found[name] if len(pair[1].split()) >= FEWEST_WORDS] for name in ("val", "test")
    )
    test_texts = texts_of(test)
    held_out = test_texts | texts_of(val)
    return {
        "train": [pair for pair in found["train"] if not held_out & texts_of([pair])],
        "val": [pair for pair in val if not test_texts & texts_of([pair])],
        "test": test,
    }


def texts_of(pairs):
    """Returns all texts of pairs in lower case, a set."""
    return {text.casefold() for pair in pairs for text in pair}


def main(arguments=None):
    """Writes the three files. Returns 0, or 1 where the packages are missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--packages", type=Path, required=True, help="folder that the packages were extracted into"
    )
    parser.add_argument("--output", type=Path, required=True, help="folder for the three files")
    options = parser.parse_args(arguments)
    needed = (f"{HELP}/ko", f"{HELP}/en-US", CATALOGUES)
    missing = [name for name in needed if not (options.packages / name).is_dir()]
    if missing:
        print(
            f"korean_help_data: error: --packages must have {', '.join(needed)}. Missing: {', '.join(missing)}.",
            file=sys.stderr,
        )
        return 1
    options.output.mkdir(parents=True, exist_ok=True)
    for part, pairs in read_pairs(options.packages).items():
        file = options.output / f"{part}.ko-en.tsv.gz"
        with gzip.open(file, "wt", encoding="utf-8") as opened:
            opened.writelines(f"{korean}\t{english}\n" for korean, english in pairs)
        print(f"{file}: {len(pairs):,} pairs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
