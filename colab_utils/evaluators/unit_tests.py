"""Code: the sample's unittest class judges the program.

Upstream is bigcodebench 0.2.5, `untrusted_check` with calibration: the text that runs is the
stub, a `pass`, the solution and the tests; it passes when no test fails or errs, also when
none ran. `passed` asks more: every test of the class ran, and each succeeded. The one
documented deviation is the time limit: 60 s in place of a flat 241 s.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable
from typing import Any

from colab_utils.evaluators.extraction import code_answer, strip_thinking
from colab_utils.evaluators.judgement import Judgement, Outcome, RunJob, ended_early, taken_wrongly

NAME, VERSION = "unit_tests", "3"
SECONDS = 60.0
EMBEDDED_SECONDS = 10.0

Sanitise = Callable[[str, str], str | None]


def seconds_for(benchmark: str) -> float:
    """Time limit of a benchmark's programs; the embedded ones are small."""
    return EMBEDDED_SECONDS if benchmark.startswith("embedded") else SECONDS


def judge(
    text: str, reference: dict[str, Any], seconds: float, run: RunJob, sanitise: Sanitise
) -> Judgement:
    """Judge one reply by `reference` {code_prompt, entry_point, test}.

    `sanitise` is upstream's sanitiser: (text, entry point) -> program, None when it failed or
    ran out of time. Our extraction falls back on it, thinking stripped, where no block and no
    text defines the entry point.
    """
    entry_point = reference["entry_point"]
    upstream = sanitise(text, entry_point)
    ours = code_answer(text, entry_point)
    program, how = ours.code, ours.how
    if program is None:
        bare = strip_thinking(text)
        found = upstream if bare == text else sanitise(bare, entry_point)
        if found and _parses(_program(found, reference)):
            program, how = found, "upstream's sanitiser"
    extra = {"found": how, "sanitised": upstream is not None}
    results: dict[str, dict[str, Any]] = {}

    def result_of(solution: str) -> dict[str, Any]:
        # Our program and upstream's often differ in blank lines and comments only.
        key = _syntax(_program(solution, reference))
        if key not in results:
            results[key] = run(_job(solution, reference), seconds)
        return results[key]

    passed_upstream = upstream is not None and _passes_upstream(result_of(upstream))
    outcome: Outcome = "no_answer"
    detail = "no program in the reply"
    if program is None or not program.strip():
        program = None
    else:
        outcome, detail = _outcome(result_of(program), reference["test"])
    if outcome != "passed" and upstream and passed_upstream and strip_thinking(text) == text:
        theirs, _ = _outcome(result_of(upstream), reference["test"])
        if theirs == "passed":
            outcome, detail = taken_wrongly(outcome, detail)
    return Judgement(outcome == "passed", passed_upstream, outcome, detail, program, extra)


def reference_holds(reference: dict[str, Any], seconds: float, run: RunJob) -> str | None:
    """Why the canonical solution fails its own tests; None when it passes."""
    program = reference["code_prompt"] + reference["canonical_solution"]
    job = {"kind": "code", "program": program + "\n" + reference["test"]}
    outcome, detail = _outcome(run(job, seconds), reference["test"])
    return None if outcome == "passed" else f"{outcome}: {detail}"


def expected_tests(source: str) -> int:
    """Number of tests of `TestCases`, read from its source: what a program can't change."""
    tree = ast.parse(source)
    cases = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "TestCases"]
    names = {
        node.name
        for case in cases[-1:]
        for node in case.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test")
    }
    return len(names)


def whole_program(solution: str, reference: dict[str, Any]) -> str:
    """The text that runs: the stub, a `pass`, the solution, the tests."""
    return f"{_program(solution, reference)}\n{reference['test']}"


def _job(solution: str, reference: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "code", "program": whole_program(solution, reference)}


def _program(solution: str, reference: dict[str, Any]) -> str:
    return f"{reference['code_prompt']}\n    pass\n{solution}"


def _parses(program: str) -> bool:
    try:
        ast.parse(program)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _syntax(program: str) -> str:
    """What equal programs share: their syntax trees, or the text of one that does not parse."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.dump(ast.parse(program))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return program


def _passes_upstream(result: dict[str, Any]) -> bool:
    return ended_early(result) is None and "problems" in result and not result["problems"]


def _outcome(result: dict[str, Any], test: str) -> tuple[Outcome, str]:
    early = ended_early(result)
    if early is not None:
        return early
    if "problems" not in result:
        return "error", str(result.get("error", "no result"))
    if result["altered"]:
        return "unsafe", "the program altered unittest"
    problems = result["problems"]
    expected = expected_tests(test)
    if "ALL" in problems:
        return "error", problems["ALL"]
    if problems:
        name, text = next(iter(problems.items()))
        # A test that breaks off in an exception says less than one that compares and differs.
        outcome: Outcome = "wrong_answer" if result["failed"] else "error"
        return outcome, f"{len(problems)} of {result['ran']} tests failed; {name}: {text}"
    if result["succeeded"] != expected or result["ran"] != expected:
        return "unsafe", f"{result['succeeded']} of {expected} tests succeeded, none failed"
    return "passed", f"{expected} tests passed"
