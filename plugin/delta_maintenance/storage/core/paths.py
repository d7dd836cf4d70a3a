"""The rules for paths in a store, and the only place that decodes paths of a log."""

from __future__ import annotations

import re
from urllib.parse import unquote

from delta_maintenance.errors import CorruptTableError, InvalidRequestError


def check_path(path: str) -> str:
    """Returns the path of a file relative to a store's root, unchanged.

    `InvalidRequestError` for a path that a store or a reader could take for another file: with an
    empty, `.` or `..` segment, a leading or trailing slash, a backslash, a control character, or
    text without a UTF-8 form.
    """
    if not path:
        raise InvalidRequestError("a file path is empty", remedy="name a file below the root")
    unclean = _UNCLEAN.search(path)
    if unclean is not None or any(segment in _NOT_A_NAME for segment in path.split("/")):
        raise InvalidRequestError(
            f"the path {path!r} is not a clean path below the table's root",
            remedy="give '/'-separated names without '.', '..', backslash or control characters",
        )
    return path


def check_directory(directory: str) -> str:
    """Like `check_path`, for a directory; the empty string is the root itself."""
    return check_path(directory) if directory else directory


def check_start(start: str) -> str:
    """Returns the bare name at which a listing starts, unchanged; empty means at the beginning."""
    if "/" in start or _UNCLEAN.search(start):
        raise InvalidRequestError(
            f"a listing cannot start at {start!r}", remedy="give a bare file name"
        )
    return start


def just_before(start: str) -> str:
    """A text below `start` that leaves no name of a log in between.

    For stores that list what comes after a name, never the name itself. What does lie in between is
    left out by the caller.
    """
    head, last = start[:-1], start[-1]
    return f"{head}{chr(ord(last) - 1)}~" if "!" < last <= "~" else head


def decode_log_path(path: str) -> str:
    """The literal path of what a log calls `path` (a URI reference, RFC 2396), decoded once.

    `%` followed by anything but two hexadecimal digits stays as it is, as engines that never
    encoded their paths wrote it. `CorruptTableError` where the bytes are not UTF-8: replacing them
    would make different files look the same.
    """
    try:
        return unquote(path, errors="strict")
    except UnicodeDecodeError as error:
        raise CorruptTableError(
            "the path's percent-encoded bytes are not UTF-8",
            file=path,
            remedy="rewrite the action that names it",
        ) from error


_UNCLEAN = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\\]")
_NOT_A_NAME = frozenset(("", ".", ".."))
