"""Paths of file actions that make a table unsafe to write to.

Two findings of "Action Reconciliation" and "Add File and Remove File" that a replay by key cannot
see: one path live with two deletion vectors, and one absolute file written in several spellings.
Readers disagree about both, so whoever writes on would decide for them.
"""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc


class PathAudit:
    """Collects the paths of a snapshot batch by batch, then says what is wrong with them.

    Keeps nothing for tables without deletion vectors and absolute paths.
    """

    def __init__(self, root: str) -> None:
        self._root = root.rstrip("/")
        self._live: list[pa.Array] = []
        self._has_vectors = False
        self._absolute: set[str] = set()

    def offer(self, adds: pa.Table, tombstones: pa.Table) -> None:
        """Takes in the live files and the tombstones of one batch."""
        paths = adds["path"]
        self._live.extend(paths.chunks)
        if "deletionVector" in adds.column_names:
            vectors = adds["deletionVector"]
            self._has_vectors |= vectors.null_count < len(vectors)
        for column in (paths, tombstones["path"]):
            # `:` only stands before a slash where a scheme is; relative paths encode it.
            absolute = pc.match_substring_regex(column, "^(/|[A-Za-z][A-Za-z0-9+.-]*:)")
            if pc.any(absolute).as_py():
                self._absolute.update(column.filter(absolute).to_pylist())

    def problem(self) -> str | None:
        """The first thing that forbids writing, as one clause, or None."""
        if self._has_vectors:
            paths = pa.chunked_array(self._live, pa.string())
            counts = pc.value_counts(paths)
            twice = counts.filter(pc.greater(counts.field("counts"), 1))
            if len(twice):
                path = twice.field("values")[0].as_py()
                return f"the path {path} is live with two deletion vectors"
        return self._spelling_problem()

    def _spelling_problem(self) -> str | None:
        if not self._absolute:
            return None
        spellings: dict[str, str] = {}
        for path in sorted(self._absolute):
            location = _location(path)
            other = spellings.setdefault(location, path)
            if other != path:
                return f"one file is written in two spellings, {other} and {path}"
        inside = {
            location.removeprefix(f"{_location(self._root)}/"): path
            for location, path in spellings.items()
            if location.startswith(f"{_location(self._root)}/")
        }
        if inside:
            live = pa.chunked_array(self._live, pa.string())
            relative = pc.is_in(live, value_set=pa.array(sorted(inside), pa.string()))
            if pc.any(relative).as_py():
                path = live.filter(relative)[0].as_py()
                return f"one file is written in two spellings, {path} and {inside[path]}"
        return None


def _location(path: str) -> str:
    parts = urlsplit(path)
    scheme = {"s3a": "s3", "s3n": "s3", "file": ""}.get(parts.scheme, parts.scheme)
    where = f"{scheme}:" if scheme else ""
    return f"{where}{parts.netloc}/{unquote(parts.path).lstrip('/')}"
