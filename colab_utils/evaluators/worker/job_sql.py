"""SQL: run one query on a read-only connection and say which rows came, by their digests.

Rows are compared as Python compares tuples of SQLite's values (1 equals 1.0, '1' does not equal
1, bytes are no text), so each value is written in one form that equal values share.
"""

import hashlib
import sqlite3
import time
from collections.abc import Iterable

from .text import describe

READING = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}


def run(job: dict) -> dict:
    """`how` it ended (rows, error, timeout, unsafe), `detail`, `query_seconds`; digests of rows.

    `set` is of the distinct rows, `multiset` of all, `sequence` of all in their order.
    """
    began = time.monotonic()
    rows, how, detail = fetch(job["database_uri"], job["query"], job["seconds"], job["max_rows"])
    seconds = round(time.monotonic() - began, 3)
    if rows is None:
        return {"how": how, "detail": detail, "query_seconds": seconds}
    encoded = [encode(row) for row in rows]
    return {
        "how": how,
        "detail": detail,
        "query_seconds": seconds,
        "rows": len(rows),
        "set": digest(sorted(set(encoded))),
        "multiset": digest(sorted(encoded)),
        "sequence": digest(encoded),
    }


def authorise(action: int, first: object, second: object, database: object, trigger: object) -> int:
    """Reading only: no ATTACH, no PRAGMA, no write, no extension."""
    if action == sqlite3.SQLITE_FUNCTION and second == "load_extension":
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK if action in READING else sqlite3.SQLITE_DENY


def fetch(uri: str, query: str, seconds: float, max_rows: int) -> tuple:
    """Rows of one query on a read-only connection, or why there are none."""
    deadline = time.monotonic() + seconds
    try:
        connection = sqlite3.connect(f"{uri}?mode=ro&immutable=1", uri=True)
    except sqlite3.Error as error:
        return None, "error", describe(error)
    try:
        # Cells that are not UTF-8 are read without loss; sqlite3's default would fail on them.
        connection.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
        connection.execute("PRAGMA query_only = 1")
        connection.set_authorizer(authorise)
        connection.set_progress_handler(lambda: time.monotonic() > deadline, 10000)
        rows = connection.execute(query).fetchmany(max_rows + 1)
    except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError, MemoryError) as error:
        if time.monotonic() > deadline:
            return None, "timeout", f"ended after {seconds} s"
        kind = "unsafe" if "not authorized" in str(error) else "error"
        return None, kind, describe(error)
    finally:
        connection.close()
    if len(rows) > max_rows:
        return None, "error", f"more than {max_rows} rows"
    return rows, "rows", f"{len(rows)} rows"


def encode(row: tuple) -> bytes:
    """One form of a row that equal rows, and no others, share."""
    parts = []
    for value in row:
        if value is None:
            kind, data = b"n", b""
        elif isinstance(value, bytes):
            kind, data = b"b", value
        elif isinstance(value, str):
            kind, data = b"s", value.encode("utf-8", "surrogateescape")
        elif isinstance(value, float) and not value.is_integer():
            kind, data = b"f", repr(value).encode("ascii")
        else:
            # A whole float equals the integer of its exact value, -0.0 equals 0.
            kind, data = b"i", b"%d" % int(value)
        parts.append(kind + b"%d:" % len(data) + data)
    return b"".join(parts)


def digest(rows: Iterable[bytes]) -> str:
    """SHA-256 of rows, each with its length before it."""
    total = hashlib.sha256()
    for row in rows:
        total.update(b"%d:" % len(row) + row)
    return total.hexdigest()
