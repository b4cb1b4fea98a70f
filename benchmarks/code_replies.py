"""Replies to BigCodeBench tasks made from their references: right, bare and broken ones.

A task file is JSON lines (may be gzipped) with `task_id`, `code_prompt`, `canonical_solution`,
`test` and `entry_point`, as the benchmark publishes them.
"""

from __future__ import annotations

import ast
import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LOOPS = 10
_UNPRELOADED = ("tensorflow", "keras")


def load_tasks(paths: list[Path]) -> list[dict[str, Any]]:
    """The tasks of several files; one that stands in two files with equal text once."""
    found: dict[str, dict[str, Any]] = {}
    for path in paths:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
        for line in filter(None, text.split("\n")):
            task = json.loads(line)
            key = task["task_id"]
            same = found.get(key)
            if same is not None and (same["test"], same["code_prompt"]) != (
                task["test"], task["code_prompt"],
            ):  # fmt: skip
                key = f"{key}@{path.name.split('.')[0]}"
            found.setdefault(key, {**task, "name": key})
    return list(found.values())


def replies(tasks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Five replies a task, six for the first ten that have a loop in place of their body."""
    for number, task in enumerate(tasks):
        whole = task["code_prompt"] + task["canonical_solution"]
        texts = {
            "canonical": whole,
            "chat": "다음은 요청하신 함수입니다. 먼저 입력을 확인합니다.\n\n"
            f"```python\n{whole}\n```\n\n이 함수는 설명대로 동작합니다.",
            "body": task["canonical_solution"],
            "constant": other_constant(whole),
            "exception": with_first_statement(
                whole, task["entry_point"], "raise RuntimeError('no')"
            ),
        }
        if number < LOOPS:
            texts["loop"] = with_first_statement(
                whole, task["entry_point"], "while True:\n        pass"
            )
        for kind, text in texts.items():
            yield {
                "id": f"{task['name']}/{kind}",
                "text": text,
                **{key: task[key] for key in ("code_prompt", "entry_point", "test")},
            }


def other_constant(program: str) -> str:
    """The program with its last number (or text) of the function changed."""

    class Change(ast.NodeTransformer):
        def __init__(self, chosen: ast.Constant) -> None:
            self.chosen = chosen

        def visit_Constant(self, node: ast.Constant) -> ast.Constant:
            if node is not self.chosen:
                return node
            value = node.value
            return ast.Constant(value + "x" if isinstance(value, str) else value + 1)

    tree = ast.parse(program)
    constants = [
        node
        for node in ast.walk(tree.body[-1])
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float | str)
    ]
    if not constants:
        return program + "\n"
    return ast.unparse(ast.fix_missing_locations(Change(constants[-1]).visit(tree)))


def with_first_statement(program: str, name: str, statement: str) -> str:
    """The program with a statement put first into the body of a function."""
    tree = ast.parse(program)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            node.body[:0] = ast.parse(f"def f():\n    {statement}").body[0].body  # type: ignore[attr-defined]
    return ast.unparse(ast.fix_missing_locations(tree))


def imported(tasks: list[dict[str, Any]]) -> list[str]:
    """Top-level modules that the references and tests import, TensorFlow left out."""
    names = set()
    for task in tasks:
        for node in ast.walk(ast.parse(task["code_prompt"] + "\n    pass\n" + task["test"])):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module)
    return sorted(name for name in names if name.split(".")[0] not in _UNPRELOADED)


if __name__ == "__main__":
    for reply in replies(load_tasks([Path(name) for name in sys.argv[1:]])):
        print(json.dumps(reply))
