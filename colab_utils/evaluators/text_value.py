"""What a returned text is worth: FinanceReasoning's reading of it, without running it.

Upstream (`normalize` of its `utils/evaluation_utils.py`, commit b0fe645) evaluates the text as
Python, then once more after clearing it of currencies, units and words. Here literals and
operators are evaluated and nothing else: a call or a name counts as a text that can't be read.
Its quirks are kept, since they decide `passed_upstream`: "1,152" is the pair (1, 152), "5 or 6"
is 5, "5 million" is 5, and a power written "10^2" never gives a hundred.
"""

from __future__ import annotations

import ast
import operator
import re
import warnings
from collections.abc import Callable
from typing import Any

_MAX_BITS = 4096
_DROPPED = ("£", "€", "¥", "million", "billion", "thousand", "us", "usd", "rmb")
_MARKS = ("`", "%", "$", "°")
_BOOLEANS = {"true": "True", "yes": "True", "false": "False", "no": "False"}
_NUMBER = r"[\d,]*\.*\d+"
# A number with a word behind it, before it, or with one or two other characters at either end.
_UNITS = (
    re.compile(rf"([-+]?{_NUMBER}) [^0-9 ]+$"),
    re.compile(rf"[^0-9 ]+ ([-+]?{_NUMBER})$"),
    re.compile(rf"([-+]?{_NUMBER})[^\d]{{1,2}}$"),
    re.compile(rf"[^-+\d]{{1,2}}({_NUMBER})$"),
)
_WITH_COMMAS = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})*|\d+)(?:\.\d+)?$")
# Upstream writes it as a call of a module that it did not import.
_POWER_OF_TEN = re.compile(r"10\^-?\d+")

_UNARY: dict[type, Callable[[Any], Any]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Invert: operator.invert,
}
_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitXor: operator.xor,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
}
_COMPARED: dict[type, Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def text_value(text: str) -> Any:
    """The Python value that upstream would compare; None when it can't read the text."""
    try:
        return _evaluate(text)
    except _UNREADABLE:
        pass
    bare = text.strip().lower().rstrip(".")
    for word in _DROPPED:
        bare = bare.replace(word, "")
    for sign in ("=", "≈"):
        if sign in bare:
            bare = bare.split(sign)[-1].strip()
    for mark in _MARKS:
        bare = bare.replace(mark, "")
    bare = _BOOLEANS.get(bare, bare)
    for word in ("true", "false"):
        if word in bare:
            bare = word.capitalize()
            break
    if "approximately" in bare:
        bare = bare.replace("approximately", "").strip()
    bare = bare.split(" or ")[0]
    for pattern in _UNITS:
        match = pattern.match(bare)
        bare = match[1] if match else bare
    if _POWER_OF_TEN.search(bare):
        return None
    bare = bare.replace(" x ", "*").replace(" × ", "*")
    if _WITH_COMMAS.match(bare):
        bare = bare.replace(",", "")
    try:
        return _evaluate(bare)
    except _UNREADABLE:
        return None


_UNREADABLE = (SyntaxError, ValueError, TypeError, ArithmeticError, MemoryError, RecursionError)


def _evaluate(text: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _value(ast.parse(text.lstrip(" \t"), mode="eval").body)


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant():
            return node.value
        case ast.Tuple() | ast.List():
            return [_value(element) for element in node.elts]
        case ast.UnaryOp(op=ast.Not()):
            return not _value(node.operand)
        case ast.UnaryOp():
            return _UNARY[type(node.op)](_value(node.operand))
        case ast.BinOp():
            return _calculated(type(node.op), _value(node.left), _value(node.right))
        case ast.BoolOp():
            return _first_deciding(node)
        case ast.Compare():
            return _holds(node)
    raise ValueError("neither a literal nor an operation")


def _calculated(kind: type[ast.operator], left: Any, right: Any) -> Any:
    """One operation on numbers, small enough to be calculated at once."""
    if not (isinstance(left, int | float | complex) and isinstance(right, int | float | complex)):
        raise TypeError("not numbers")
    if kind is ast.Pow and isinstance(left, int) and isinstance(right, int):
        too_big = left.bit_length() * right > _MAX_BITS
    else:
        too_big = kind is ast.LShift and right > _MAX_BITS  # type: ignore[operator]
    if too_big or kind not in _BINARY:
        raise ValueError("too big")
    return _BINARY[kind](left, right)


def _first_deciding(node: ast.BoolOp) -> Any:
    stops_at = isinstance(node.op, ast.Or)
    value: Any = None
    for operand in node.values:
        value = _value(operand)
        if bool(value) == stops_at:
            break
    return value


def _holds(node: ast.Compare) -> bool:
    left = _value(node.left)
    for operation, operand in zip(node.ops, node.comparators, strict=True):
        if type(operation) not in _COMPARED:
            raise ValueError("not a comparison of values")
        right = _value(operand)
        if not _COMPARED[type(operation)](left, right):
            return False
        left = right
    return True
