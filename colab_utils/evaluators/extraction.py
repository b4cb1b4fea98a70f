"""What in a reply is the answer: our extraction, and upstream's for finance.

Ours, for all tasks alike: thinking is stripped; fenced blocks first, the first one that
defines what is asked for; then the text itself. Upstream's rule for finance is
`upstream_finance`; for SQL it is the reply as it stands; for code it is bigcodebench's own
sanitiser, which is called (`worker/sanitise.py`), not written again.
"""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from dataclasses import dataclass

EXTRACTION_VERSION = "3"

_THINKING = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL | re.IGNORECASE)
_FENCE = re.compile(r"^([ \t]*)(`{3,}|~{3,})[^\n`]*$")
_ONE_LINE_FENCE = re.compile(r"```(?:sqlite|sql)[ \t]([^`\n]+)```", re.IGNORECASE)
_TAG = re.compile(r"\w*[ \t]*")
_SQL_START = re.compile(r"^[ \t]*(?:SELECT|WITH)\b", re.IGNORECASE | re.MULTILINE)
_QUERY = re.compile(
    r"SELECT\b|WITH\s+(?:RECURSIVE\s+)?[\w\"`\[\]]+\s*(?:\([^)]*\)\s*)?AS\b", re.IGNORECASE
)
_SQL_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)


@dataclass(frozen=True)
class Extraction:
    """`code` is what is judged, None when there is nothing; `how` says where it was found."""

    code: str | None
    how: str


def strip_thinking(text: str) -> str:
    """The reply without `<think>` parts; one that is never closed reaches to the end."""
    rest = _THINKING.sub("", text)
    # Templates that open the thinking themselves leave only its end in the reply.
    head, mark, tail = rest.partition("</think>")
    return tail if mark else head


def blocks(text: str) -> list[str]:
    """Fenced blocks in order, whatever their tag; an unclosed one reaches to the end."""
    found: list[str] = []
    fence = indent = ""
    lines: list[str] = []
    for line in _one_fence_a_line(text).split("\n"):
        match = _FENCE.match(line)
        closes = fence and line.strip().startswith(fence) and not line.strip().strip(fence[0])
        if fence and closes:
            found.append("\n".join(lines))
            fence = ""
        elif fence:
            lines.append(line.removeprefix(indent))
        elif match:
            indent, fence, lines = match[1], match[2], []
    if fence:
        found.append("\n".join(lines))
    return found


def _one_fence_a_line(text: str) -> str:
    """The text with each fence on a line of its own.

    Chat models also open a fence after text on the same line, and close one at a line's end.
    """
    text = _ONE_LINE_FENCE.sub(r"```sql\n\1\n```", text.replace("\r\n", "\n"))
    lines: list[str] = []
    for line in text.split("\n"):
        before, fence, after = line.rpartition("```")
        if fence and before.strip() and "`" not in before and _TAG.fullmatch(after):
            lines += [before.rstrip(), fence + after]
        else:
            lines.append(line)
    return "\n".join(lines)


def code_answer(text: str, entry_point: str) -> Extraction:
    """The program that defines `entry_point`; `how` is `none` when upstream's rule must decide."""
    text = strip_thinking(text)
    fenced = blocks(text)
    for number, block in enumerate(fenced, start=1):
        if defines(block, entry_point):
            return Extraction(block, f"block {number} of {len(fenced)}")
    if not fenced and defines(text, entry_point):
        return Extraction(text, "whole text")
    return Extraction(None, "none")


def finance_answer(text: str) -> Extraction:
    """The program that defines `solution`."""
    text = strip_thinking(text)
    fenced = blocks(text)
    for number, block in enumerate(fenced, start=1):
        if defines(block, "solution"):
            return Extraction(block, f"block {number} of {len(fenced)}")
    program = _leading_program(text)
    if program is not None:
        return Extraction(program, "program in the text")
    # A reply may also go on with the body, and close a fence that the prompt had opened.
    for part in (*fenced, text.split("```")[0]):
        body = _body(part)
        if body is not None:
            return Extraction(body, "body of solution()")
    return Extraction(None, "none")


def sql_answer(text: str) -> Extraction:
    """The query: the first block that is one, else the first SELECT or WITH in the text."""
    text = strip_thinking(text)
    fenced = blocks(text)
    for number, block in enumerate(fenced, start=1):
        if is_query(block):
            return Extraction(block.strip(), f"block {number} of {len(fenced)}")
    if fenced:
        return Extraction(None, "none")
    if is_query(text) and ";" not in text.rstrip().removesuffix(";"):
        return Extraction(text.strip(), "whole text")
    for match in _SQL_START.finditer(text):
        query = _first_statement(text[match.start() :])
        if is_query(query):
            return Extraction(query, "query in the text")
    return Extraction(None, "none")


def is_query(text: str) -> bool:
    """Whether the text begins as a SELECT, or as a WITH that names a table expression."""
    bare = _SQL_COMMENT.sub(" ", text).strip()
    return bool(_QUERY.match(bare))


def _first_statement(text: str) -> str:
    """Text up to the first semicolon outside quotes, or the first blank line."""
    end = re.compile(r"""'(?:[^']|'')*'|"[^"]*"|(;|\n\s*\n)""")
    stop = next((match.start(1) for match in end.finditer(text) if match[1]), len(text))
    return text[:stop].strip()


def defines(code: str, name: str) -> bool:
    """Whether Python code defines `name` at its top level, also when it does not parse."""
    tree = _parse(code)
    if tree is None:
        return bool(re.search(rf"^(?:async\s+)?def\s+{re.escape(name)}\s*\(", code, re.MULTILINE))
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            return True
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == name for target in node.targets
        ):
            return True
    return False


def upstream_finance(text: str) -> str:
    """FinanceReasoning's `extract_pot_answers` (commit b0fe645), quirk for quirk.

    Empty output, or the word argparse anywhere, gives nothing. A "```py" or "```Python" tag
    stays in the program and breaks it; the first block counts, also inside thinking.
    """
    if not text or "argparse" in text:
        return ""
    header = "def solution():"
    for pattern in (r"```python(.*?)```", r"```(.*?)```"):
        match = re.search(pattern, text, re.DOTALL)
        if match:
            program = match[1].strip("\n")
            break
    else:
        if header in text:
            program = text.strip()
        else:
            # Only the first line is indented: the rest of a body must bring its own.
            lead = "" if len(text) > 4 and text.startswith("    ") else "    "
            program = f"{header}\n{lead}{text.split('```')[0]}"
    return program.strip("`").strip()


def _leading_program(text: str) -> str | None:
    """The longest run of lines from the first import or `def solution` on that parses."""
    lines = text.replace("\r\n", "\n").split("\n")
    starts = [
        number
        for number, line in enumerate(lines)
        if re.match(r"(?:def solution\b|import |from \w+ import )", line)
    ]
    if not starts or not any("def solution" in line for line in lines):
        return None
    for end in range(len(lines), starts[0], -1):
        candidate = "\n".join(lines[starts[0] : end])
        if _parse(candidate) is not None and defines(candidate, "solution"):
            return candidate
    return None


def _body(text: str) -> str | None:
    """A reply that goes on inside `solution()`, under its header, when that is a program."""
    program = "def solution():\n" + textwrap.indent(textwrap.dedent(text), "    ")
    tree = _parse(program)
    returns = tree is not None and any(isinstance(n, ast.Return) for n in ast.walk(tree))
    return program if returns else None


def _parse(code: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
