"""Lines of file actions that stay text: only the logical file of each is found out.

Whoever moves actions from one file of the log to another (log compaction) need not take them apart
and put them together again: a line that is carried as it stands loses no field and no digit of one,
whoever wrote it. Nearly all are in the plain form (`log_texts`); the rest are parsed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.actions.file_columns import logical_file_keys
from delta_maintenance.protocol.columns.arrays import integers, to_bools
from delta_maintenance.protocol.columns.key_hash import Hashes, hash_between
from delta_maintenance.protocol.ndjson.line_buffers import LogTexts, TextLines, line_ends, texts_of
from delta_maintenance.protocol.ndjson.line_prefixes import PADDING, read_heads
from delta_maintenance.protocol.ndjson.parse import FileLines, MapKeys, parse_file_actions
from delta_maintenance.protocol.ndjson.split import (
    FILE_ACTIONS,
    CommitText,
    SingleActions,
    parse_line,
    parse_other_lines,
    split,
)

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class FileActionLines:
    """Adds and removes as they stand in the log, one a line."""

    data: bytes | memoryview
    """The lines, each with its newline at the end; others may be among them."""
    starts: Ints
    """Where each of the lines that are meant begins, ascending."""
    ends: Ints
    """Behind the newline of each."""
    keys: Keys
    """The logical file of each (`logical_file_keys`)."""
    is_remove: Bools
    source: Ints
    """Which of the given files each comes from, counted from 0."""
    plain: bool
    """All of them were written in the plain form."""

    def filter(self, mask: Bools) -> FileActionLines:
        """Some of the lines, in the same order."""
        if mask.all():
            return self
        return FileActionLines(
            self.data,
            self.starts[mask],
            self.ends[mask],
            self.keys.filter(mask),
            self.is_remove[mask],
            self.source[mask],
            self.plain,
        )

    def texts(self) -> Iterator[bytes]:
        """The lines, one behind the other, some at a time, with `dataChange` false: they repeat
        earlier commits.

        Where another field of a line might be meant it stays true; whoever wants the state of a
        table does not ask for it.
        """
        if not len(self.starts):
            return
        data = memoryview(self.data)
        # Adjacent lines are copied together, but for where a text ends.
        written = np.cumsum(self.ends - self.starts) // _TEXT_BYTES
        last_of_text = np.append(written[1:] != written[:-1], True)
        last_of_run = last_of_text | np.append(self.starts[1:] != self.ends[:-1], True)
        first_of_run = np.append(True, last_of_run[:-1])
        runs = [
            data[start:end]
            for start, end in zip(
                self.starts[first_of_run].tolist(), self.ends[last_of_run].tolist(), strict=True
            )
        ]
        bounds = np.cumsum(last_of_run)[last_of_text].tolist()
        for first, last in pairwise([0, *bounds]):
            text = b"".join(runs[first:last])
            if self.plain:
                # Inside of a text its quotes would be escaped.
                text = text.replace(b'"dataChange":true', b'"dataChange":false')
            yield text


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys of logical files that lie in a text."""

    data: bytes | memoryview
    """No key has one of its last eight bytes."""
    starts: Ints
    """Ascending."""
    ends: Ints

    @classmethod
    def of(cls, keys: pa.StringArray) -> Self:
        """Copies of keys."""
        offsets, data = _buffers(keys.cast(pa.large_string()))
        return cls(data + PADDING, offsets[:-1], offsets[1:])

    def filter(self, mask: Bools) -> Keys:
        """Some of the keys, in the same order."""
        return Keys(self.data, self.starts[mask], self.ends[mask])

    def hashes(self) -> Hashes:
        """Those of `key_hash`."""
        return hash_between(self.data, self.starts, self.ends)

    def array(self) -> pa.StringArray:
        """Copies of the keys."""
        # An array of all keys and of what lies between them, of which every other one is taken.
        offsets = np.column_stack([self.starts, self.ends]).ravel()
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self.data)]
        count = max(len(offsets) - 1, 0)
        pieces = pa.Array.from_buffers(pa.large_string(), count, buffers)
        return pieces.take(integers(np.arange(0, count, 2))).cast(pa.string())


@dataclass(frozen=True, slots=True)
class SingleLines:
    """What a file of the log holds besides file actions."""

    actions: SingleActions
    """Parsed, `commitInfo` left out."""
    texts: tuple[tuple[tuple[str, str], bytes], ...]
    """Each action that is part of a state as a line of text, under its name and, where there may be
    several, its application id or domain."""


def read_lines(lines: TextLines) -> tuple[FileActionLines, list[SingleLines]]:
    """What the lines say, those of change data files and `commitInfo` left out.

    File actions come in no particular order, other actions by file. `CorruptTableError` names the
    file and the line that nobody could read.
    """
    files, starts, source = lines.files, lines.starts, lines.source
    if lines.plain is None:
        heads = read_heads(files.data, starts)
        rows = heads.rows
    else:
        rows = lines.plain
        heads = read_heads(files.data, starts[rows])
    is_other = np.ones(len(starts), bool)
    is_other[rows] = False
    singles: list[SingleLines] = []
    odd: list[int] = []
    plain_lines = np.bincount(source[rows], minlength=len(files.names)).tolist()
    for index, others in enumerate(_other_lines(lines, is_other)):
        # One without any line is for `split` to complain of.
        found = _singles(files.names[index], others) if others or plain_lines[index] else None
        if found is None:
            odd.append(index)
        singles.append(found or SingleLines(SingleActions(), ()))
    meant = ~heads.is_cdc & ~np.isin(source[rows], odd)
    rows = rows[meant]
    regular = FileActionLines(
        files.data,
        starts[rows],
        lines.ends[rows],
        Keys(files.data, heads.path_starts[meant], heads.path_ends[meant]),
        heads.is_remove[meant],
        source[rows],
        plain=True,
    )
    if not odd:
        return regular, singles
    parsed, beside = _parsed_lines(files, odd)
    for index, found in zip(odd, beside, strict=True):
        singles[index] = found
    return _beside(regular, parsed), singles


_TEXT_BYTES = 64 << 10
"""Roughly, of what is written in one go: it is still in the cache, and its room is used again."""
_FILE_MARKS = (b'{"add":{', b'{"remove":{', b'{"cdc":{')
_ACTION_KEY = r'"(?:add|remove|cdc)"\s*:\s*\{'
_PARSED_FIELDS = {action: ("path", "deletionVector", "dataChange") for action in ("add", "remove")}
_KEYED = {"txn": "appId", "domainMetadata": "domain"}
_STATE = ("protocol", "metaData", *_KEYED)


def _other_lines(lines: TextLines, mask: Bools) -> list[list[tuple[int, bytes]]]:
    """By file the lines of a mask that are not blank, each with its number in its file."""
    count = len(lines.files.names)
    others: list[list[tuple[int, bytes]]] = [[] for _ in range(count)]
    first_row = np.searchsorted(lines.source, np.arange(count)).tolist()
    rows = np.flatnonzero(mask)
    texts = lines.texts.cast(pa.large_binary()).take(integers(rows)).to_pylist()
    for row, index, line in zip(rows.tolist(), lines.source[rows].tolist(), texts, strict=True):
        if line.strip():
            others[index].append((row - first_row[index] + 1, line))
    return others


def _singles(name: str, lines: Sequence[tuple[int, bytes]]) -> SingleLines | None:
    """The single actions of a file; None where file actions are among them."""
    if any(line.startswith(_FILE_MARKS) for _, line in lines):
        return None
    actions, beside = parse_other_lines(CommitText(name, (), (), tuple(lines), None))
    if beside:
        return None
    # Most commits hold nothing but their `commitInfo`.
    some = actions.protocol or actions.metadata or actions.txns or actions.domains
    return SingleLines(actions, _single_texts(lines) if some else ())


def _single_texts(
    lines: Sequence[tuple[int, bytes]],
) -> tuple[tuple[tuple[str, str], bytes], ...]:
    return tuple(
        ((name, value[_KEYED[name]] if name in _KEYED else ""), text)
        for name, value, text in _one_by_one(lines)
        if name in _STATE
    )


def _one_by_one(lines: Sequence[tuple[int, bytes]]) -> Iterator[tuple[str, Any, bytes]]:
    """Every action with a line of its own; one that has it already is not written anew."""
    for _, line in lines:
        present = {name: value for name, value in parse_line(line).items() if value is not None}
        for name, value in present.items():
            yield name, value, line.strip() + b"\n" if len(present) == 1 else _rendered(name, value)


def _rendered(name: str, value: object) -> bytes:
    text = json.dumps({name: value}, separators=(",", ":"), ensure_ascii=False)
    return text.encode() + b"\n"


def _parsed_lines(
    files: LogTexts, numbers: Sequence[int]
) -> tuple[FileActionLines, list[SingleLines]]:
    """The lines of files of which some are not plain, by way of the parser of file actions."""
    sources, singles = [], []
    for number in numbers:
        text = split(files.names[number], files.text(number))
        actions, _ = parse_other_lines(text)
        beside = [line for name, _, line in _one_by_one(text.other_lines) if name in FILE_ACTIONS]
        sources.append(FileLines.of(text, beside))
        singles.append(SingleLines(actions, _single_texts(text.other_lines)))
    parsed = parse_file_actions(
        sources, keys=MapKeys(partition_columns=frozenset()), fields=_PARSED_FIELDS
    )
    data = b"".join(source.joined() for source in sources)
    texts = texts_of(data, np.append(0, line_ends(data)))
    texts = texts.take(integers(np.concatenate([parsed.add_line, parsed.remove_line])))
    is_remove = np.repeat([False, True], [len(parsed.add_line), len(parsed.remove_line)])
    tables = (parsed.adds, parsed.removes)
    keys = [chunk for table in tables for chunk in logical_file_keys(table).chunks]
    changes = [chunk for table in tables for chunk in table["dataChange"].chunks]
    texts = _without_data_change(
        _alone(texts, is_remove), pa.concat_arrays([pa.array([], pa.bool_()), *changes])
    )
    offsets, data = _buffers(texts)
    lines = FileActionLines(
        data,
        offsets[:-1],
        offsets[1:],
        Keys.of(pa.concat_arrays([pa.array([], pa.string()), *keys])),
        is_remove,
        np.array(numbers)[np.concatenate([parsed.add_source, parsed.remove_source])],
        plain=False,
    )
    return lines, singles


def _buffers(texts: pa.LargeStringArray) -> tuple[Ints, bytes]:
    """Where each text begins and where the last one ends, in a copy of all of them."""
    _, offsets, data = texts.buffers()
    if data is None:
        return np.zeros(1, np.int64), b""
    found = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    first, last = int(found[0]), int(found[-1])
    return found - first, data.slice(first, last - first).to_pybytes()


def _alone(texts: pa.LargeStringArray, is_remove: Bools) -> pa.LargeStringArray:
    """The lines without whatever other actions stand on them; hardly any writer does so."""
    crowded = pc.greater(pc.count_substring_regex(texts, _ACTION_KEY), 1)
    if not pc.any(crowded).as_py():
        return texts
    rows = np.flatnonzero(to_bools(crowded)).tolist()
    alone = [_one_action(texts[row].as_py(), "remove" if is_remove[row] else "add") for row in rows]
    return pc.replace_with_mask(texts, crowded, pa.array(alone, pa.large_string()))


def _one_action(line: str, name: str) -> str:
    actions = {key: value for key, value in parse_line(line.encode()).items() if value is not None}
    return line if len(actions) == 1 else _rendered(name, actions[name]).decode()


def _without_data_change(
    texts: pa.LargeStringArray, data_change: pa.BooleanArray
) -> pa.LargeStringArray:
    # Where the key stands once, and the line does change data, it is the key that says so.
    once = pc.equal(pc.count_substring_regex(texts, r'"dataChange"\s*:'), 1)
    changed = pc.replace_substring_regex(texts, r'"dataChange"\s*:\s*true', '"dataChange":false')
    return pc.if_else(pc.and_(once, pc.fill_null(data_change, False)), changed, texts)


def _beside(plain: FileActionLines, parsed: FileActionLines) -> FileActionLines:
    data = b"".join([*plain.texts(), parsed.data])
    ends = line_ends(data)
    return FileActionLines(
        data,
        np.append(0, ends)[:-1],
        ends,
        Keys.of(pa.concat_arrays([plain.keys.array(), parsed.keys.array()])),
        np.concatenate([plain.is_remove, parsed.is_remove]),
        np.concatenate([plain.source, parsed.source]),
        plain=False,
    )
