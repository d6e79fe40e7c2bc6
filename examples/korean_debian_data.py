"""Makes more pairs of Korean and English for `korean_help.py`, from the help pages and catalogues of Debian's packages.

    apt-get download gimp-help-ko gimp-help-en gnome-user-docs gnome-devel-docs installation-guide-amd64 gimp-data
    for package in *.deb; do dpkg-deb --extract "$package" packages; done
    pip install babel lxml
    python examples/korean_debian_data.py --packages packages --held-out libreoffice-ko-en --output more.ko-en.tsv.gz

Any packages do: every Korean catalogue in them is read, and every Korean page beside its English page. Paragraphs are
aligned by their order, in pages whose two languages have the same elements; other pages are counted and left out. No
text of the validation and test pairs of --held-out, in either language, is among the pairs that are written. Each
package has its own free licence, which its `copyright` file tells. Nothing is downloaded.
"""

import argparse
import gzip
import html
import re
import sys
from pathlib import Path

import tqdm
from korean_help_data import HANGUL, clean, is_pair, texts_of

from keras_transformer.data import read_tsv

CATALOGUES, PAGES = "usr/share/**/ko/LC_MESSAGES/*.mo", "usr/share/**/ko/**/*"
# The key of a menu, which a Korean text has behind it: "파일(_F)" is "_File".
KEY = re.compile(r"\s*\(([_&~])([A-Za-z0-9])\)")
MARKUP = re.compile(r"<[^<>]*>|^@[a-z:]+\s")
# Of a text: a character that could not be read, who translated it, and code, which no sentence has.
NOT_SENTENCES = re.compile(r"\ufffd|@\w+\.|[{}\\]|%\(|#include|https?://|::|->")
BLOCKS = {"p", "h1", "h2", "h3", "h4", "h5", "h6", "td", "th", "dt", "li"}  # of HTML
BLOCKS |= {"para", "simpara", "title", "term", "entry", "screeninfo", "caption", "desc", "remark", "item"}
SUFFIXES = (".page", ".docbook", ".xml", ".html")
SENTENCE_ENDS = re.compile(r"(?<=[.!?]) +")
FEWEST_WORDS, MOST_WORDS = 3, 60  # of the English
# The share of Hangul in the Korean text's letters. A text that is half translated has less.
FEWEST_HANGUL = 0.4
# Of the English text, for each character of the Korean one.
FEWEST_CHARACTERS, MOST_CHARACTERS = 0.8, 5.0


def main(arguments=None):
    """Writes the file. Returns 0, or 1 where nothing can be made."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--packages", type=Path, required=True, help="folder that the packages were extracted into"
    )
    parser.add_argument(
        "--held-out",
        type=Path,
        required=True,
        help="folder of the val and test pairs, which korean_help_data.py makes",
    )
    parser.add_argument("--output", type=Path, required=True, help="file for the pairs, .tsv.gz")
    options = parser.parse_args(arguments)
    held_files = [options.held_out / f"{part}.ko-en.tsv.gz" for part in ("val", "test")]
    missing = [str(file) for file in held_files if not file.is_file()]
    if missing:
        print(f"korean_debian_data: error: --held-out lacks {', '.join(missing)}.", file=sys.stderr)
        return 1
    pairs = {}
    for source in (page_pairs, catalogue_pairs):
        for pair in source(options.packages):
            if is_sentence(*pair):
                pairs.setdefault(pair)
        print(f"{source.__name__}: {len(pairs):,} pairs so far")
    held_out = set().union(*(texts_of(read_tsv(file)) for file in held_files))
    kept = [pair for pair in pairs if not held_out & texts_of([pair])]
    if not kept:
        print(
            f"korean_debian_data: error: --packages must have pairs below {options.packages}/usr/share. Received: "
            f"{len(pairs)}, of which {len(pairs)} are held out.",
            file=sys.stderr,
        )
        return 1
    with gzip.open(options.output, "wt", encoding="utf-8") as opened:
        opened.writelines(f"{korean}\t{english}\n" for korean, english in kept)
    print(
        f"{options.output}: {len(kept):,} pairs; {len(pairs) - len(kept):,} were left out, which are held out"
    )
    return 0


def is_sentence(korean, english):
    """Returns whether the texts are a translation of a few words at least, and of like length."""
    words, ratio = len(english.split()), len(english) / max(1, len(korean))
    letters = sum(letter.isalpha() for letter in korean)
    return (
        is_pair(korean, english)
        and FEWEST_WORDS <= words <= MOST_WORDS
        and len(HANGUL.findall(korean)) >= FEWEST_HANGUL * letters
        and FEWEST_CHARACTERS <= ratio <= MOST_CHARACTERS
        and not NOT_SENTENCES.search(korean + " " + english)
    )


def catalogue_pairs(packages):
    """Yields the pairs of Korean and English of all catalogues."""
    from babel.messages.mofile import read_mo

    for file in tqdm.tqdm(sorted(packages.glob(CATALOGUES)), desc="catalogues", disable=None):
        try:
            with open(file, "rb") as opened:
                messages = list(read_mo(opened))
        except (OSError, ValueError, LookupError):
            print(f"{file}: cannot be read as a catalogue", file=sys.stderr)
            continue
        for message in messages:
            # Of a plural the singular: Korean has one form.
            texts = (message.string, message.id)
            texts = (text if isinstance(text, str) else text[0] for text in texts)
            yield tuple(clean(html.unescape(MARKUP.sub(" ", text))) for text in without_key(*texts))


def without_key(korean, english):
    """Returns the texts of a menu without the mark of its key: only a Korean text says which letter it is."""
    key = KEY.search(korean)
    if key is None:
        return korean, english
    mark, letter = key.groups()
    return KEY.sub("", korean), re.sub(f"{mark}(?={letter})", "", english, count=1, flags=re.IGNORECASE)


def page_pairs(packages):
    """Yields the pairs of Korean and English of all pages that have the same elements in both languages."""
    aligned = apart = 0
    for korean in tqdm.tqdm(sorted(packages.glob(PAGES)), desc="pages", disable=None):
        english = (
            english_page(packages, korean) if ".html" in korean.name or korean.suffix in SUFFIXES else None
        )
        if english is None:
            continue
        both = [blocks(page) for page in (korean, english)]
        if [tag for tag, _ in both[0]] != [tag for tag, _ in both[1]]:
            apart += 1
            continue
        aligned += 1
        for (_, korean_text), (_, english_text) in zip(*both, strict=True):
            parts = [SENTENCE_ENDS.split(text) for text in (korean_text, english_text)]
            yield (korean_text, english_text)
            if len(parts[0]) == len(parts[1]) > 2:
                yield from zip(*parts, strict=True)
    print(f"{aligned:,} pages are aligned, {apart:,} have other elements in English")


def english_page(packages, korean):
    """Returns the file of the same page in English; None if there is none."""
    parts = list(korean.relative_to(packages).parts)
    at = parts.index("ko")
    name = korean.name.replace(".ko.", ".en.").removesuffix(".euc-kr")
    for folder in (["C"], ["en"], []):
        page = packages.joinpath(*parts[:at], *folder, *parts[at + 1 : -1], name)
        if page.is_file():
            return page
    return None


def blocks(page):
    """Returns the texts of a page: `(tag, text)` of each element of `BLOCKS` that has no other one inside."""
    from lxml import etree
    from lxml import html as lxml_html

    if ".html" in page.name:
        parser = lxml_html.HTMLParser(encoding="euc-kr" if page.name.endswith(".euc-kr") else "utf-8")
    else:
        parser = etree.XMLParser(recover=True, resolve_entities=False, no_network=True)
    try:
        root = etree.parse(str(page), parser).getroot()
    except (OSError, etree.LxmlError):
        return []
    found = []
    for element in [] if root is None else root.iter():
        if tag_of(element) in BLOCKS and not any(
            tag_of(inner) in BLOCKS for inner in element.iterdescendants()
        ):
            text = clean(
                " ".join(element.itertext()) if tag_of(element) == "td" else "".join(element.itertext())
            )
            found.append((tag_of(element), text))
    return found


def tag_of(element):
    """Returns the name of an element without its namespace; an empty one of a comment."""
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""


if __name__ == "__main__":
    sys.exit(main())
