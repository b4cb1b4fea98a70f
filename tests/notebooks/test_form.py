"""The form of the notebooks: what a reader finds at the top, before each cell, and in Korean."""

from __future__ import annotations

import ast
import re

import nbformat
import pytest

from colab_utils.notebooks import NOTEBOOKS

SEEN = "**What you will see:**"
# Colab links to a cell by its id; elsewhere the same link finds the anchor beside the heading.
HEADING = re.compile(r'## (\d+\. .+) <a id="scrollTo=(.+)"></a>')
KOREAN_TERMS = {
    "smoke": ("model", "engine", "evaluator", "surface", "condition", "점수가 아닙니다"),
    "full_run": ("decoding settings", "operating settings", "resume"),
    "scoring": ("evaluator", "`passed`", "`passed_upstream`", "extraction"),
    "report": ("paired difference", "flip rate"),
    "pick_model": (),
    "batch": (),
}

every = pytest.mark.parametrize("name", sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb")))


def cells(name: str) -> list[nbformat.NotebookNode]:
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    return list(notebook.cells)


@every
def test_contents_link_to_every_heading(name):
    first, *rest = cells(name)
    (contents,) = re.findall(r"^\*\*Contents:\*\* (.+)$", first.source, re.MULTILINE)
    links = re.findall(r"\[(.+?)\]\(#scrollTo=(.+?)\)", contents)
    headings = []
    for cell in rest:
        for line in re.findall(r"^## .+$", cell.source, re.MULTILINE):
            text, anchor = HEADING.fullmatch(line).groups()
            assert anchor == cell.id and cell.source.startswith(line)
            headings.append((text, anchor))
    assert links == headings
    assert [int(text.partition(".")[0]) for text, _ in links] == list(range(1, len(links) + 1))


@every
def test_each_code_cell_follows_words_on_what_will_be_seen(name):
    all_cells = cells(name)
    for before, cell in zip([None, *all_cells], all_cells, strict=False):
        if cell.cell_type == "code":
            assert before is not None and before.cell_type == "markdown", cell.id
            assert before.source.count(SEEN) == 1, before.id


@every
def test_parameters_are_a_form_of_plain_values(name):
    (cell,) = [c for c in cells(name) if "parameters" in c.metadata.get("tags", [])]
    assert cell.cell_type == "code"
    for line in cell.source.splitlines():
        assert re.fullmatch(r"[A-Z_]+ = .+  # @param\b.*", line), line
        (assignment,) = ast.parse(line).body
        value = ast.literal_eval(assignment.value)
        if kind := re.search(r'type: ?"(\w+)"', line):
            assert type(value) is {"string": str, "integer": int, "boolean": bool}[kind[1]], line


@every
def test_nothing_that_ran_is_stored(name):
    for cell in cells(name):
        if cell.cell_type == "code":
            assert cell.outputs == [] and cell.execution_count is None, cell.id


@every
def test_what_a_reader_meets_first_is_explained_in_korean(name):
    paragraphs = [
        part
        for cell in cells(name)
        if cell.cell_type == "markdown"
        for part in cell.source.split("\n\n")
        if re.search("[가-힣]", part)
    ]
    korean = "\n\n".join(paragraphs)
    assert "한국어 안내" in korean
    assert [term for term in KOREAN_TERMS[name] if term not in korean] == []
    # One style throughout: sentences end in -니다 or -십시오.
    ends = re.findall(r"([가-힣]+)\.(?=\s|\*|$)", korean)
    assert ends and [end for end in ends if not end.endswith(("니다", "십시오", "안내"))] == []
    # A closing ** between punctuation and a Korean particle would be shown as two stars.
    assert not re.search(r"\*\*[^*\n]*[).,:'\"]\*\*[가-힣]", korean)
