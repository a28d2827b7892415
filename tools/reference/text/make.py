"""Makes the reference readings of numbers in crates/text/tests/data with num2words, checked against Unicode CLDR.

    python -m venv venv && venv/bin/pip install -r tools/reference/text/requirements.txt
    venv/bin/python tools/reference/text/make.py crates/text/tests/data

Every line is `kind<TAB>number<TAB>words`, the words exactly as num2words 0.5.14 writes them. Every reading that CLDR's
spell-out rules (unicode-rbnf 2.4.1) have as well must agree with them, apart from hyphens, commas and "and"; else this
stops. Three choices:

- Persian ordinals after «ی» are from persian-tools 0.0.11 («سی اُم»): num2words writes «سیم», which is the word for wire.
- Persian ends below 10^15. num2words calls 10^15 «تریلیارد», CLDR «هزار هزار میلیارد», and Tandem «کوادریلیون».
- CLDR says «یک هزار» for 1000 and «هزار میلیارد» for 10^12; num2words and Tandem say «هزار» and «یک تریلیون».
"""

import sys
from decimal import Decimal
from pathlib import Path

from num2words import num2words
from persian_tools.digits import add_ordinal_suffix
from unicode_rbnf import FormatPurpose, RbnfEngine

TENS = [n for power in range(3, 15) for n in (10**power - 1, 10**power, 10**power + 1)]
LARGE = [1100, 1234, 2024, 70_000, 110_000, 100_100, 999_000, 1_250_000, 1_234_567, 5_000_000_000, 987_654_321_012_345]
CARDINALS = sorted({*range(1000), *TENS, *LARGE, 10**15 - 1})
ORDINALS = sorted({*range(131), 200, 300, 999, 1000, 1001, 1012, 2003, 10_000, 10**6})
YEARS = range(1010, 2100)
DECIMALS = [Decimal(n) / 10 for n in range(100) if n % 10] + [Decimal(n) / 100 for n in range(1, 1000, 7) if n % 10]


def plain(words):
    """Without what the two write differently."""
    return words.replace("-", " ").replace(",", "").replace(" and ", " ")


def agreed(number, words, cldr):
    if plain(words) != plain(cldr):
        sys.exit(f"{number}: num2words says {words!r}, CLDR says {cldr!r}")
    return words


def english():
    cldr = RbnfEngine.for_language("en")
    kinds = [
        ("cardinal", "cardinal", FormatPurpose.CARDINAL, CARDINALS + [10**15]),
        ("ordinal", "ordinal", FormatPurpose.ORDINAL, ORDINALS),
        ("year", "year", FormatPurpose.YEAR, YEARS),
        ("decimal", "cardinal", FormatPurpose.CARDINAL, DECIMALS),
    ]
    for kind, to, purpose, numbers in kinds:
        for n in numbers:
            words = num2words(n, lang="en", to=to)
            yield kind, n, agreed(n, words, cldr.format_number(n, purpose).text)


def persian():
    cldr = RbnfEngine.for_language("fa")
    for n in CARDINALS:
        words = num2words(n, lang="fa")
        if n < 10**12:
            agreed(n, words, cldr.format_number(n).text.removeprefix("یک ") if 1000 <= n < 2000 else cldr.format_number(n).text)
        yield "cardinal", n, words
    for n in ORDINALS:
        words = add_ordinal_suffix(num2words(n, lang="fa"))
        if not num2words(n, lang="fa").endswith("ی") and words != num2words(n, lang="fa", to="ordinal"):
            sys.exit(f"{n}: persian-tools says {words}, num2words says {num2words(n, lang='fa', to='ordinal')}")
        yield "ordinal", n, words


def main(folder):
    for name, lines in [("numbers_en.txt", english()), ("numbers_fa.txt", persian())]:
        text = "".join(f"{kind}\t{number}\t{words}\n" for kind, number, words in lines)
        (folder / name).write_text(text, encoding="utf-8")


main(Path(sys.argv[1]))
