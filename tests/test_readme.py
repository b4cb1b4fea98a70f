"""Both READMEs, English and Korean, say the same, and what the command line's help says."""

from __future__ import annotations

import re
import shlex
from functools import cache

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from colab_utils.__main__ import app
from colab_utils.manifests import PROJECT

ENGLISH, KOREAN = "README.md", "README.ko.md"
TEXTS = {name: (PROJECT / name).read_text(encoding="utf-8") for name in (ENGLISH, KOREAN)}
VERBS = set(get_command(app).commands)
NOT_SHOWN = {"demo": "`make demo` is how it is called, with the environment that it needs"}
both = pytest.mark.parametrize("readme", TEXTS)


def commands(text: str) -> list[str]:
    """The lines of all fenced bash blocks, without comments."""
    blocks = re.findall(r"^ *```bash\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)
    lines = [shlex.join(shlex.split(line, comments=True)) for line in "".join(blocks).splitlines()]
    return [line for line in lines if line]


def code(text: str) -> list[str]:
    """Inline code outside of fences."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^ *```.*?^ *```$", "", text, flags=re.M | re.S))


def tables(text: str) -> list[list[list[str]]]:
    """Cells of every table, row by row, without its head."""
    blocks = re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)
    rows = [[row.strip("|").split("|") for row in block.splitlines()[2:]] for block in blocks]
    return [[[cell.strip() for cell in row] for row in table] for table in rows]


def called(text: str) -> list[tuple[str, list[str]]]:
    """Each verb that a command or inline code calls, and the options given to it."""
    lines = [shlex.split(line) for line in commands(text)]
    calls = [line[line.index("colab_utils") + 1 :] for line in lines if "colab_utils" in line]
    calls += [words for span in code(text) if (words := span.split())[0] in VERBS]
    return [(verb, [word for word in rest if word.startswith("-")]) for verb, *rest in calls]


@cache
def shown_help(*verb: str) -> set[str]:
    """The words of `python -m colab_utils [VERB] --help`."""
    wide = {"COLUMNS": "400", "TERMINAL_WIDTH": "400", "NO_COLOR": "1"}
    result = CliRunner().invoke(app, [*verb, "--help"], env=wide)
    assert result.exit_code == 0, result.output
    return set(re.findall(r"[\w-]+", result.output))


@both
def test_verbs_and_options_named_are_in_the_help(readme):
    for verb, options in called(TEXTS[readme]):
        assert verb in VERBS and verb in shown_help(), verb
        assert set(options) <= shown_help(verb), (verb, options)


@both
def test_options_named_without_a_verb_are_some_verbs(readme):
    named = {word for span in code(TEXTS[readme]) for word in span.split() if word[:2] == "--"}
    assert named and named <= set().union(*(shown_help(verb) for verb in VERBS))


@both
def test_every_verb_is_shown_as_a_command(readme):
    shown = set(re.findall(r"colab_utils ([\w-]+)", "\n".join(commands(TEXTS[readme]))))
    assert shown == VERBS - set(NOT_SHOWN)


@both
def test_make_targets_exist(readme):
    targets = set(re.findall(r"^([a-z-]+):", (PROJECT / "Makefile").read_text(), re.MULTILINE))
    shown = {line.split()[1] for line in commands(TEXTS[readme]) if line.startswith("make ")}
    assert shown == {"demo", "test"} and shown <= targets


def test_both_show_the_same_commands():
    assert commands(TEXTS[ENGLISH]) == commands(TEXTS[KOREAN]) != []


def test_both_have_the_same_notebooks_results_and_failures():
    notebooks, results, failures = tables(TEXTS[ENGLISH])
    # The Korean one has two tables more, before these: the roles, and the words.
    korean_notebooks, korean_results, korean_failures = tables(TEXTS[KOREAN])[2:]
    assert [(row[0], row[2]) for row in notebooks] == [(row[0], row[2]) for row in korean_notebooks]
    assert [row[0] for row in results] == [row[0] for row in korean_results]
    for row, korean in zip(failures, korean_failures, strict=True):
        assert re.findall(r'`.*?`|".*?"', row[0]) == re.findall(r'`.*?`|".*?"', korean[0])
        assert sorted(code(row[1])) == sorted(code(korean[1])), row[0]


def test_both_name_the_same_files_and_settings():
    english, korean = set(code(TEXTS[ENGLISH])), set(code(TEXTS[KOREAN]))
    assert english <= korean
    # What the Korean one explains beyond it.
    assert korean - english == {"max_tokens"}


@both
def test_every_notebook_is_in_the_table_with_its_badge(readme):
    table = next(t for t in tables(TEXTS[readme]) if "colab-badge.svg" in t[0][-1])
    names = [row[0].strip("`") for row in table]
    assert sorted(names) == sorted(path.stem for path in (PROJECT / "notebooks").glob("*.ipynb"))
    for name, row in zip(names, table, strict=True):
        assert re.search(rf"/blob/v[^/]+/notebooks/{name}\.ipynb\)$", row[2])


def test_each_links_to_the_other_at_its_top():
    assert TEXTS[ENGLISH].splitlines()[2] == f"[한국어]({KOREAN})"
    assert TEXTS[KOREAN].splitlines()[2] == f"[English]({ENGLISH})"
