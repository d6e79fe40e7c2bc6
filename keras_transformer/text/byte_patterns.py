"""The regular expressions that cut texts into words for byte-level pieces, in RE2's syntax."""

# RE2 has the classes of Unicode 15.0, and Hugging Face's tokenizers have those of 16.0. The ranges are the difference.
_LETTER = (
    r"\p{L}\x{1C89}\x{1C8A}\x{A7CB}-\x{A7CD}\x{A7DA}-\x{A7DC}\x{105C0}-\x{105F3}\x{10D4A}-\x{10D65}"
    r"\x{10D6F}-\x{10D85}\x{10EC2}-\x{10EC4}\x{11380}-\x{11389}\x{1138B}\x{1138E}\x{11390}-\x{113B5}\x{113B7}"
    r"\x{113D1}\x{113D3}\x{11BC0}-\x{11BE0}\x{13460}-\x{143FA}\x{16100}-\x{1611D}\x{16D40}-\x{16D6C}\x{18CFF}"
    r"\x{1E5D0}-\x{1E5ED}\x{1E5F0}\x{2EBF0}-\x{2EE5D}"
)
_DIGIT = (
    r"\p{N}\x{10D40}-\x{10D49}\x{116D0}-\x{116E3}\x{11BF0}-\x{11BF9}\x{16130}-\x{16139}\x{16D70}-\x{16D79}"
    r"\x{1CCF0}-\x{1CCF9}\x{1E5F1}-\x{1E5FA}"
)
_BLANK_IN_LINE = r"\t\v\f \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}"
_BLANK = r"\r\n" + _BLANK_IN_LINE
_SIGNS = f" ?[^{_BLANK}{_LETTER}{_DIGIT}]+"
_GPT2 = f"'(?:[sdmt]|ll|ve|re)| ?[{_LETTER}]+| ?[{_DIGIT}]+|{_SIGNS}|[{_BLANK}]+"
_LLAMA3 = (
    rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n{_LETTER}{_DIGIT}]?[{_LETTER}]+|[{_DIGIT}]{{1,3}}|{_SIGNS}[\r\n]*"
    rf"|[{_BLANK}]*[\r\n]+|[{_BLANK}]+"
)
# The published patterns end with `\s+(?!\S)|\s+`: of several blanks before a word, the last one is left to the word.
# RE2 cannot look ahead. So the first pattern finds such a last blank, which is cut off; the second finds the words.
PATTERNS = {
    "gpt2": (f"([{_BLANK}])([{_BLANK}])([^{_BLANK}])", _GPT2),
    # Each digit is cut out first, so a blank before a digit belongs to the blanks before it.
    "gpt2_digits": (
        f"([{_BLANK}])([{_BLANK}])([^{_BLANK}{_DIGIT}])",
        _GPT2.replace(f" ?[{_DIGIT}]+", f"[{_DIGIT}]"),
    ),
    "llama3": (f"([{_BLANK}])([{_BLANK_IN_LINE}])([^{_BLANK}])", _LLAMA3),
    "qwen2": (f"([{_BLANK}])([{_BLANK_IN_LINE}])([^{_BLANK}])", _LLAMA3.replace("{1,3}", "")),
}
# tokenizers has the combining marks of Unicode 9. To it, the newer ones are letters, which end a run of marks. Between
# two noncharacters they end it here too.
NEW_MARK = (
    r"([\x{7FD}\x{897}-\x{89F}\x{8CA}-\x{8D3}\x{9FE}\x{C3C}\x{D3B}\x{D3C}\x{EBA}\x{1715}\x{1ABF}-\x{1ACE}"
    r"\x{1DF6}-\x{1DFA}\x{A82C}\x{10D24}-\x{10D27}\x{10D69}-\x{10D6D}\x{10EAB}\x{10EAC}\x{10EFD}-\x{10EFF}"
    r"\x{10F46}-\x{10F50}\x{10F82}-\x{10F85}\x{11070}\x{1133B}\x{113CE}-\x{113D0}\x{1145E}\x{11839}\x{1183A}"
    r"\x{1193D}\x{1193E}\x{11943}\x{119E0}\x{11A34}\x{11A47}\x{11A99}\x{11D42}\x{11D44}\x{11D45}\x{11D97}"
    r"\x{11F41}\x{11F42}\x{1612F}\x{16FF0}\x{16FF1}\x{1E08F}\x{1E130}-\x{1E136}\x{1E2AE}\x{1E2EC}-\x{1E2EF}"
    r"\x{1E4EC}-\x{1E4EF}\x{1E5EE}\x{1E5EF}])"
)
