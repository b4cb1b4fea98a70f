"""Texts of bounded length."""

MAX_TEXT = 2000


def short(text: str) -> str:
    """At most MAX_TEXT characters, so that a program cannot flood the result."""
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 3] + "..."


def describe(error: BaseException) -> str:
    """Class and message of an exception that foreign code may have made."""
    try:
        return short(f"{type(error).__name__}: {error}")
    except BaseException:
        return short(type(error).__name__)
