"""The README's commands exist, and every verb of the command line is in it."""

from __future__ import annotations

import re

from typer.main import get_command

from colab_utils.__main__ import app
from colab_utils.manifests import PROJECT

README = (PROJECT / "README.md").read_text(encoding="utf-8")


def test_verbs_are_documented_and_documented_verbs_exist():
    shown = set(re.findall(r"python -m colab_utils ([\w-]+)", README))
    verbs = set(get_command(app).commands) - {"demo"}
    assert shown == verbs


def test_make_targets_exist():
    targets = set(re.findall(r"^([a-z-]+):", (PROJECT / "Makefile").read_text(), re.MULTILINE))
    shown = set(re.findall(r"^make (\w+)", README, re.MULTILINE))
    assert shown == {"demo", "test"} and shown <= targets


def test_options_shown_exist():
    options = set(re.findall(r"(--[a-z][a-z-]+)", README))
    known = {name for c in get_command(app).commands.values() for p in c.params for name in p.opts}
    assert options <= known


def test_notebooks_have_a_badge():
    for path in (PROJECT / "notebooks").glob("*.ipynb"):
        assert re.search(rf"/blob/v[^/]+/notebooks/{path.name}", README)
