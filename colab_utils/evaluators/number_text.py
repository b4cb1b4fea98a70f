"""Numbers as Korean and English answers write them: "1억 2,000만 원", "₩1,152", "12.5%".

A benchmark's rule misreads such a text, or can't read it. Here it is named and read, so that a
report can tell a wrong number from a right one in another notation; no verdict depends on it.

Whatever is not surely one number is not read: prose, other currencies, negative amounts in
brackets or behind a triangle, "1,2000", and "1억 2천", which is said for 1억 2천만.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from fractions import Fraction

# A longer text is prose; only its beginning is looked through, and it is not read.
LONGEST = 200

_FULL_WIDTH = "full-width digits"
_GROUPED = r"[0-9]{1,3}(?:,[0-9]{3})+"
_UNIT = "십백천만억조"
# A word that only begins like a notation (만기 maturity, 조건 condition, 원금 principal,
# 프로그램 program) is none.
_NOTATIONS = {
    "won": re.compile(
        rf"(?:₩|\bkrw)\s*[-+]?[0-9.]|[0-9{_UNIT}]\s*(?:원(?!금)|₩|krw\b)", re.IGNORECASE
    ),
    "percent": re.compile(rf"[0-9{_UNIT}]\s*(?:%|퍼센트|프로(?!그램|젝트|세스))"),
    "thousands separators": re.compile(rf"(?<![0-9.,]){_GROUPED}(?!,?[0-9])"),
    "Korean units": re.compile(rf"[0-9]\s*(?!만큼|만기|조각|조건|백분)[{_UNIT}]"),
}

_WHOLE = re.compile(
    r"([-+]?)\s*(?:₩|krw)?\s*([-+]?)\s*([0-9.].*?)\s*(?:원|₩|krw|%|퍼센트|프로)?\.?",
    re.IGNORECASE,
)
_NUMBER = rf"(?:{_GROUPED}|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+"
_WITH_EXPONENT = re.compile(rf"(?:{_NUMBER})(?:e[-+]?[0-9]{{1,3}})?", re.IGNORECASE)
# 조, 억 and 만 end a group, within which 천, 백 and 십 each multiply the number before them.
_GROUPS = re.compile("".join(rf"(?:([0-9.,십백천\s]+){unit})?" for unit in "조억만") + "(.*)")
_GROUP_UNITS = (10**12, 10**8, 10**4, 1)
_PARTS = re.compile("".join(rf"(?:({_NUMBER})\s*{u}\s*)?" for u in "천백십") + f"({_NUMBER})?")
_PART_UNITS = (1000, 100, 10, 1)
# Well within what a float holds, so that no reader of the verdicts gets an infinity.
_TOO_BIG = 10**300


@dataclass(frozen=True)
class NumberText:
    """Names of the notations found in a text, and the number it stands for, if it is one."""

    notations: tuple[str, ...]
    value: int | float | None


def read(text: str) -> NumberText:
    """Name the notations in a text and read it, in any Unicode form; nothing is evaluated."""
    start = text[:LONGEST]
    plain = unicodedata.normalize("NFKC", start)
    names = [name for name, pattern in _NOTATIONS.items() if pattern.search(plain)]
    if re.search("[０-９]", start):
        names.append(_FULL_WIDTH)
    # An amount of money and a percentage at once is not one number.
    is_either = not ("won" in names and "percent" in names)
    readable = is_either and len(text) <= LONGEST and not any(map(_becomes_digit, start))
    return NumberText(tuple(names), _value(plain.strip()) if readable else None)


def _becomes_digit(character: str) -> bool:
    """Whether NFKC makes a plain digit of what is none: "10²" is not 102, nor "①" 1."""
    if character.isascii() or "０" <= character <= "９":
        return False
    return bool(re.search("[0-9]", unicodedata.normalize("NFKC", character)))


def _value(text: str) -> int | float | None:
    """The number that a whole text stands for, whole ones as int."""
    whole = _WHOLE.fullmatch(text.replace("\N{MINUS SIGN}", "-"))
    if whole is None or (whole[1] and whole[2]):
        return None
    amount = _amount(whole[3])
    if amount is None or amount >= _TOO_BIG:
        return None
    signed = -amount if "-" in (whole[1], whole[2]) else amount
    return int(signed) if signed.denominator == 1 else float(signed)


def _amount(text: str) -> Fraction | None:
    """An unsigned number: plain, with an exponent, or in groups of Korean units."""
    if _WITH_EXPONENT.fullmatch(text):
        return _exact(text)
    groups = _GROUPS.fullmatch(text)
    if groups is None:
        return None
    *upper, ten_thousands, rest = groups.groups()
    # "1억 2천" is said for 1억 2천만, and written for 1억 2,000.
    if any(upper) and ten_thousands is None and re.search("[십백천]", rest):
        return None
    pairs = zip(groups.groups(), _GROUP_UNITS, strict=True)
    return _summed([(_group(group), unit) for group, unit in pairs if group])


def _group(text: str) -> Fraction | None:
    """What stands before one large unit, such as 3천5백."""
    parts = _PARTS.fullmatch(text.strip())
    if parts is None:
        return None
    pairs = zip(parts.groups(), _PART_UNITS, strict=True)
    return _summed([(_exact(part), unit) for part, unit in pairs if part])


def _summed(parts: list[tuple[Fraction | None, int]]) -> Fraction | None:
    """The sum of numbers times their units; each must be less than the unit before it."""
    total, limit = Fraction(0), _TOO_BIG
    for number, unit in parts:
        if number is None or number * unit >= limit:
            return None
        total, limit = total + number * unit, unit
    return total if parts else None


def _exact(number: str) -> Fraction:
    return Fraction(number.replace(",", ""))
