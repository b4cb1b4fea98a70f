"""Build every database from the SQL text beside it: `python data/make_databases.py`.

The manifest pins the SHA-256 of the committed files; another SQLite version may write other
bytes for the same content.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

DATABASES = Path(__file__).parent / "databases"


def build(source: Path, target: Path) -> None:
    """Make `target` anew from the SQL text of `source`; foreign keys are enforced.

    Raises `sqlite3.Error` when the text is not SQL that SQLite runs, or a key finds no row;
    `target` stays as it was then.
    """
    fresh = target.with_name(f".{target.name}.part")
    fresh.unlink(missing_ok=True)
    try:
        with closing(sqlite3.connect(fresh)) as connection:
            connection.execute("PRAGMA foreign_keys = ON")
            connection.executescript(source.read_text(encoding="utf-8"))
            connection.execute("VACUUM")
        fresh.replace(target)
    finally:
        fresh.unlink(missing_ok=True)


def main() -> None:
    """Build all databases."""
    for source in sorted(DATABASES.glob("*/schema_and_rows.sql")):
        build(source, source.with_name(f"{source.parent.name}.sqlite"))


if __name__ == "__main__":
    main()
