"""The rules for paths in a store, and the only place that decodes the paths of a log."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote

from delta_maintenance.errors import CorruptTableError, InvalidRequestError


def check_path(path: str) -> str:
    """Checks the path of a file relative to a store's root and returns it unchanged.

    `InvalidRequestError` for a path that a store or a reader could mistake for another file: with
    an empty, `.` or `..` segment, a leading or trailing slash, a backslash, a control character, or
    text that cannot be encoded as UTF-8.
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
    """Checks the bare name at which a listing starts and returns it; empty means the beginning."""
    if "/" in start or _UNCLEAN.search(start):
        raise InvalidRequestError(
            f"a listing cannot start at {start!r}", remedy="give a bare file name"
        )
    return start


def just_before(start: str) -> str:
    """Returns a string before `start`, such that no name of a log lies between the two.

    For stores that list names after a key, excluding the key. The caller drops any other names in
    between.
    """
    head, last_character = start[:-1], start[-1]
    return f"{head}{chr(ord(last_character) - 1)}~" if "!" < last_character <= "~" else head


def decode_log_path(path: str) -> str:
    """Decodes the path of a log entry (a URI reference, RFC 2396) to the literal path, once.

    `%` that is not followed by two hexadecimal digits is kept, because some engines write paths
    without encoding them. `CorruptTableError` if the bytes are not UTF-8: replacement characters
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


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStatus:
    """One file in a listing."""

    path: str
    """Relative to the store's root, `/`-separated, exactly as stored (never URI-encoded)."""
    size: int
    """Bytes."""
    modified_ms: int
    """Milliseconds since 1970-01-01 UTC."""
    tag: str = field(default="", compare=False)
    """Files of one store with the same tag and size have the same content. Empty if the store
    states none; the tags of files with the same content can differ."""
    metadata: Mapping[str, str] | None = field(default=None, compare=False)
    """What its writer attached to it, as far as `stat` shows it."""
