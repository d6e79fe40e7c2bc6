"""How much of what must arrive does arrive, and what it costs: placeholders, URLs, numbers and terms of a glossary.

    python benchmarks/kept.py RUN SENTENCES --glossary terms.tsv

RUN is a saved translator, and SENTENCES a file with one source sentence on each line (of a line with tabs, the first
column). Each sentence gets a placeholder, a URL or a number before one of its words. The script translates all with
the translator as it is, and with `TermTranslator`; it counts what the translations hold of what they must, and the
seconds.
"""

import argparse
import collections
import itertools
import os
import random
import re
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from keras_transformer.data import stream_lines
from keras_transformer.serving import Glossary, TermTranslator, Translator

NAMES = ("name", "user_name", "count", "file", "0", "1", "total_pages", "date")
HOSTS = ("example.org", "www.example.com", "docs.example.net")
PATHS = ("help", "docs", "files", "en", "download", "guide", "issues", "wiki")
KINDS = {  # what finds a text of each kind, and what makes one from random numbers
    "placeholders": (r"\{\w+\}", lambda numbers: f"{{{numbers.choice(NAMES)}}}"),
    "URLs": (
        r"https?://\S+",
        lambda numbers: f"https://{numbers.choice(HOSTS)}/{numbers.choice(PATHS)}/{numbers.randint(1, 9999)}",
    ),
    "numbers": (r"\d[\d.,]*\d", lambda numbers: f"{numbers.randint(1_000, 99_999):,}"),
}
COPIED = "|".join(pattern for pattern, _ in KINDS.values())


def with_items(sentences, seed):
    """Returns the sentences with a placeholder, a URL or a number before one of the words of each, in turn."""
    numbers, makers, lines = random.Random(seed), itertools.cycle(KINDS.values()), []
    for sentence, (_, make) in zip(sentences, makers, strict=False):
        words = sentence.split()
        words.insert(numbers.randrange(len(words)), make(numbers))
        lines.append(" ".join(words))
    return lines


def kind_of(text):
    """Returns the kind of a text that must arrive."""
    return next((kind for kind, (pattern, _) in KINDS.items() if re.fullmatch(pattern, text)), "terms")


def main():
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run")
    parser.add_argument("sentences")
    parser.add_argument("--glossary")
    parser.add_argument("--lines", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    glossary = Glossary.read(options.glossary, COPIED) if options.glossary else Glossary(copy=COPIED)
    translator = Translator.load(options.run)
    sentences = [line.decode().partition("\t")[0].strip() for line in stream_lines(options.sentences)]
    lines = with_items([line for line in sentences if line][: options.lines], options.seed)
    wanted = [glossary.found_in(line) for line in lines]
    counts = collections.Counter(kind_of(text) for row in wanted for text in row)
    searches = {"as it is": translator, "with what must arrive": TermTranslator(translator, glossary)}
    arrived, seconds = {}, {}
    for name, search in searches.items():
        search.translate(lines[:4])  # builds most of its functions
        start = time.perf_counter()
        translations = search.translate(lines)
        seconds[name] = time.perf_counter() - start
        kept = [
            text
            for row, translation in zip(wanted, translations, strict=True)
            for text in set(row) - set(glossary.lacking(row, translation))
        ]
        arrived[name] = collections.Counter(map(kind_of, kept))
    print(f"{len(lines)} sentences, {sum(map(bool, wanted))} with something that must arrive")
    print(f"| | there are | {' | '.join(searches)} |\n| --- | --- | --- | --- |")
    for kind, count in counts.items():
        print(f"| {kind} | {count:,} | {' | '.join(f'{arrived[name][kind]:,}' for name in searches)} |")
    print(f"| seconds | | {' | '.join(f'{seconds[name]:.1f}' for name in searches)} |")


if __name__ == "__main__":
    main()
