"""The conditions of a user's queries: from flags, files with SQL, and event logs of Spark.

`--queries` names one file, or a folder such as a rolled event log of Spark. Files may be compressed
by Zstandard, which Spark uses by default, or gzip. An event log can have any size; its lines are
read one after another.
"""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.address import Address
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations.layout.pushed_filters import EVERYTHING, parse_pushed
from delta_maintenance.protocol.schema.condition import Condition, parse_condition
from delta_maintenance.storage import open_store
from delta_maintenance.storage.core.base import Store
from delta_maintenance.storage.core.listing import EntryKind

MOST_BYTES = 64 << 20
"""The size of the largest file with SQL, and of the largest event."""
EVENT = b'{"Event"'
"""The beginning of each line of an event log."""

_CODECS = {b"\x28\xb5\x2f\xfd": "zstd", b"\x1f\x8b": "gzip"}
_OTHER_CODECS = {b"LZ4Block": "LZ4", b"\x82SNAPPY\x00": "Snappy", b"ZV": "LZF"}


def open_queries(
    address: str, storage_options: Mapping[str, str] | None
) -> Iterator[tuple[str, io.BufferedReader]]:
    """Yields the name and the contents of each file, in the order of their numbers.

    Raises `InvalidRequestError` if there is none, or for a codec that is not supported.
    """
    location = Address.parse(address)
    store = open_store(location.parent, storage_options)
    if store.stat(location.name) is not None:
        names = [location.name]
    else:
        entries = pa.concat_tables(store.list_tree(location.name))
        files = entries.filter(pc.equal(entries["kind"], int(EntryKind.FILE)))
        names = sorted(filter(_is_wanted, files["path"].to_pylist()), key=_by_number)
    if not names:
        raise InvalidRequestError(
            "the file with queries does not exist", file=address, remedy="correct its name"
        )
    for name in names:
        with store.open(name) as raw:
            yield name, _decompress(store, name, raw)


def lines_of(stream: io.BufferedReader) -> Iterator[bytes]:
    """Yields the lines up to `MOST_BYTES`. A file that is still being written ends before its last
    block.
    """
    is_whole = True
    while True:
        try:
            line = stream.readline(MOST_BYTES)
        except OSError:
            return
        if not line:
            return
        ends = line.endswith(b"\n")
        if is_whole and (ends or len(line) < MOST_BYTES):
            yield line
        is_whole = ends


def _decompress(store: Store, name: str, raw: BinaryIO) -> io.BufferedReader:
    head = store.read_head(name, 8)
    for magic, other in _OTHER_CODECS.items():
        if head.startswith(magic):
            raise InvalidRequestError(
                f"the file with queries is compressed by {other}",
                file=name,
                remedy="decompress it, or set spark.eventLog.compression.codec to zstd",
            )
    source = pa.PythonFile(raw, "r")
    codecs = (codec for magic, codec in _CODECS.items() if head.startswith(magic))
    codec: str | None = next(codecs, None)
    return io.BufferedReader(source if codec is None else pa.CompressedInputStream(source, codec))


def _is_wanted(path: str) -> bool:
    # Beside the events of an application is the status of the application.
    name = path.rpartition("/")[2]
    return not name.startswith((".", "_", "appstatus_"))


def _by_number(path: str) -> list[tuple[int, str]]:
    return [(int(part or 0), text) for text, part in re.findall(r"(\D*)(\d*)", path)]


@dataclass(frozen=True)
class Query:
    """A condition, and how often it occurs."""

    text: str
    source: str | Condition | None
    """None for a query that reads every row."""
    runs: int

    @cached_property
    def condition(self) -> Condition | None:
        """The condition. It is parsed when it is used, because rare ones are not."""
        return (
            parse_condition(self.source, lenient=True)
            if isinstance(self.source, str)
            else self.source
        )


@dataclass(slots=True)
class _Found:
    conditions: dict[str, str | Condition | None] = field(default_factory=dict)
    runs: Counter[str] = field(default_factory=Counter)

    def add(self, text: str, condition: str | Condition | None) -> None:
        self.conditions.setdefault(text, condition)
        self.runs[text] += 1


def queries_of(
    where: Iterable[str],
    address: str | None,
    *,
    table: str,
    storage_options: Mapping[str, str] | None = None,
) -> tuple[Query, ...]:
    """Returns the different conditions. `address` is that of a file; of an event log, only scans
    of `table` count.

    `InvalidRequestError` for a file without queries.
    """
    queries = _Found()
    for text in where:
        queries.add(" ".join(text.split()), text)
    if address is not None:
        before = sum(queries.runs.values())
        for name, stream in open_queries(address, storage_options):
            _read(stream, name, table, queries)
        if sum(queries.runs.values()) == before:
            raise InvalidRequestError(
                "the file contains no query of the table",
                file=address,
                remedy="pass a file with conditions or statements in SQL, or a Spark event log",
            )
    return tuple(
        Query(text, queries.conditions[text], runs) for text, runs in queries.runs.most_common()
    )


_STATEMENT = re.compile(r"\s*(?:with|select|delete|update|from)\b", re.IGNORECASE)
_COMMENT = re.compile(r"('(?:[^']|'')*'|`(?:[^`]|``)*`)|--[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_PIECES = re.compile(r"'(?:[^']|'')*'|`(?:[^`]|``)*`|\w+|\S", re.DOTALL)
_AFTER = frozenset(
    ("group", "order", "limit", "having", "window", "qualify", "union", "intersect", "except",
     "cluster", "distribute", "sort", "offset")
)  # fmt: skip
_EXECUTION = b'"org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionStart"'
_SEVERAL_TABLES = frozenset(("join", "union", "intersect", "except", "lateral", "pivot"))


def _read(stream: io.BufferedReader, name: str, table: str, queries: _Found) -> None:
    try:
        head = stream.peek(len(EVENT))
    except OSError:
        # The first block is still being written.
        return
    if head.lstrip().startswith(EVENT):
        for scan in _scans(lines_of(stream), table):
            queries.add(*parse_pushed(scan))
        return
    data = stream.read(MOST_BYTES)
    if len(data) == MOST_BYTES:
        raise InvalidRequestError(
            f"the file with queries is larger than {MOST_BYTES >> 20} MiB, and no event log",
            file=name,
            remedy="pass fewer queries",
        )
    if b"\0" in data:
        raise InvalidRequestError(
            "the file with queries is no text in UTF-8",
            file=name,
            remedy="pass a file with conditions or statements in SQL, or a Spark event log",
        )
    plain = _COMMENT.sub(lambda match: match[1] or " ", data.decode(errors="replace"))
    for piece in _statements(plain):
        text, condition = _condition_of(piece)
        queries.add(text, condition)


def _statements(text: str) -> Iterator[str]:
    """Yields statements that end with a semicolon; without one, each line is a query."""
    start, several = 0, False
    for piece in _PIECES.finditer(text):
        if piece[0] == ";":
            several = True
            yield from filter(str.strip, [text[start : piece.start()]])
            start = piece.end()
    rest = text[start:]
    yield from filter(str.strip, [rest] if several else rest.splitlines())


def _condition_of(piece: str) -> tuple[str, str | None]:
    if not _STATEMENT.match(piece):
        text = " ".join(piece.split())
        return text, piece
    inside, start, end = 0, None, len(piece)
    for match in _PIECES.finditer(piece):
        word = match[0].lower()
        inside += (word == "(") - (word == ")")
        if inside:
            continue
        if word in _SEVERAL_TABLES:
            # The condition may be about another table.
            return f"{EVERYTHING}: {' '.join(piece.split())}"[:200], None
        if start is None and word == "where":
            start = match.end()
        elif start is not None and word in _AFTER:
            end = match.start()
            break
    if start is None:
        return EVERYTHING, None
    condition = piece[start:end]
    return " ".join(condition.split()), condition


def _scans(lines: Iterable[bytes], table: str) -> Iterator[Mapping[str, str]]:
    """Yields the metadata of each scan of the table in an event log."""
    table_name = _plain(table)
    for line in lines:
        # The other events of a log are many and large.
        if _EXECUTION not in line[:200]:
            continue
        try:
            event = json.loads(line)
        except ValueError:
            continue
        for node in _nodes(event.get("sparkPlanInfo")):
            metadata = node.get("metadata") or {}
            location = str(metadata.get("Location", ""))
            if "PushedFilters" in metadata and table_name in [_plain(p) for p in _paths(location)]:
                yield metadata


def _nodes(plan: Any) -> Iterator[Mapping[str, Any]]:
    open_nodes = [plan] if isinstance(plan, dict) else []
    while open_nodes:
        node = open_nodes.pop()
        yield node
        open_nodes += [child for child in node.get("children") or () if isinstance(child, dict)]


def _paths(location: str) -> list[str]:
    inside = location[location.find("[") + 1 :].rstrip("]")
    return [path.strip() for path in inside.split(",")]


def _plain(address: str) -> str:
    return re.sub(r"^[a-z0-9]+:/*", "/", address).rstrip("/")
