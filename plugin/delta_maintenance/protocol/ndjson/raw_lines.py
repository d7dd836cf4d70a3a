"""File action lines that stay text; only their logical files are parsed.

Log compaction moves actions from one file of the log to another. Copying the line preserves every
field and every digit, whoever wrote it. Nearly all lines are in the plain form of
`protocol.ndjson.line_buffers`; the others are parsed. To parse all lines as columns makes
compaction take 3.6 times the processor time.

Watchers of commits need to know whether rows changed, but not which ones: `digest_commit` reads the
first bytes of a commit. The contents of `commitInfo` are free-form ("Commit Provenance
Information"), so the actions decide, not the names of the operation and of the engine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.actions.file_columns import logical_file_keys
from delta_maintenance.protocol.columns import Hashes, hash_between, integers, to_bools
from delta_maintenance.protocol.ndjson.line_buffers import (
    PADDING,
    BufferedFiles,
    TextLines,
    line_ends,
    read_prefixes,
    texts_of,
)
from delta_maintenance.protocol.ndjson.parse import FileLines, MapKeys, parse_file_actions
from delta_maintenance.protocol.ndjson.split import (
    CommitText,
    SingleActions,
    parse_other_lines,
    parse_present,
    render_action,
    split,
)

PREFIX_BYTES = 64 << 10
"""Enough of a commit in nearly all cases, because writers put non-file actions before the files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitDigest:
    """A summary of one commit."""

    version: int
    operation: str | None = None
    """The name of the operation, or None if it was not recorded or not read."""
    changes_data: bool | None = None
    """Whether any file action has `dataChange`, or None if that is unknown."""
    changes_protocol: bool = False
    """Whether the part that was read contains a `protocol` action."""
    configuration: Mapping[str, str] | None = None
    """The table properties of a `metaData` action, or None if none was read."""
    whole: bool
    """Whether the complete commit was read."""


def digest_commit(data: bytes, *, version: int, name: str, whole: bool) -> CommitDigest:
    """The digest of a commit.

    `data` is the complete text of the commit or, without `whole`, its beginning. `name` is the file
    name for messages. Raises `CorruptTableError` if the text is not that of a commit.
    """
    if not whole:
        data = data[: data.rfind(b"\n") + 1]
        if not data:
            return CommitDigest(version=version, whole=False)
    text = split(name, data)
    actions, files = parse_other_lines(text, commit_info=True)
    info, metadata = actions.commit_info, actions.metadata
    lines = (*(run.text for run in text.file_lines), *files)
    changes = any(_CHANGES_DATA.search(line) for line in lines)
    return CommitDigest(
        version=version,
        operation=info.operation if info is not None else None,
        changes_data=changes if changes or whole else None,
        changes_protocol=actions.protocol is not None,
        configuration=metadata.configuration if metadata is not None else None,
        whole=whole,
    )


# In a JSON string these quotes would be escaped, so a match is a key.
_CHANGES_DATA = re.compile(rb'"dataChange"\s*:\s*true')


Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class FileActionLines:
    """Lines of adds and removes as written in the log."""

    data: bytes | memoryview
    """The lines, each with its newline; it may contain other lines as well."""
    starts: Ints
    """The offsets of the lines, ascending."""
    ends: Ints
    """The offset after the newline of each line."""
    keys: Keys
    """The key of each logical file (`logical_file_keys`)."""
    is_remove: Bools
    source: Ints
    """The index of the file that each line comes from."""
    plain: bool
    """Whether all lines are in the plain form."""

    def filter(self, mask: Bools) -> FileActionLines:
        """The selected lines, in the same order."""
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
        """The concatenated lines in blocks, with `dataChange` set to false.

        The lines repeat earlier commits, so they do not change data. In rare lines where the key
        is ambiguous, `dataChange` stays true; readers of the table state do not use it.
        """
        if not len(self.starts):
            return
        data = memoryview(self.data)
        # Adjacent lines are copied together, up to the end of a block.
        written = np.cumsum(self.ends - self.starts) // _BLOCK_BYTES
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
        for begin, stop in pairwise([0, *bounds]):
            text = b"".join(runs[begin:stop])
            if self.plain:
                # A quote within a JSON string would be escaped.
                text = text.replace(b'"dataChange":true', b'"dataChange":false')
            yield text


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys of logical files, as ranges of a text."""

    data: bytes | memoryview
    """The text. No key extends into its last eight bytes."""
    starts: Ints
    """Ascending."""
    ends: Ints

    @classmethod
    def of(cls, keys: pa.StringArray) -> Self:
        """Keys copied from an array."""
        offsets, data = _buffers(keys.cast(pa.large_string()))
        return cls(data + PADDING, offsets[:-1], offsets[1:])

    def filter(self, mask: Bools) -> Keys:
        """The selected keys, in the same order."""
        return Keys(self.data, self.starts[mask], self.ends[mask])

    def hashes(self) -> Hashes:
        """The hashes of the keys, as in `protocol.columns`."""
        return hash_between(self.data, self.starts, self.ends)

    def array(self) -> pa.StringArray:
        """The keys, copied to an array."""
        # An array of the keys and the texts between them, of which every second one is taken.
        offsets = np.column_stack([self.starts, self.ends]).ravel()
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self.data)]
        count = max(len(offsets) - 1, 0)
        pieces = pa.Array.from_buffers(pa.large_string(), count, buffers)
        return pieces.take(integers(np.arange(0, count, 2))).cast(pa.string())


def read_lines(lines: TextLines) -> tuple[FileActionLines, list[SingleActions]]:
    """The file actions of all lines and the non-file actions of each file.

    Change data files and `commitInfo` are omitted. The file actions are in no particular order.
    Raises `CorruptTableError`, with the file and the line, for a line that cannot be read.
    """
    files, starts, source = lines.files, lines.starts, lines.source
    if lines.plain is None:
        prefixes = read_prefixes(files.data, starts)
        rows = prefixes.rows
    else:
        rows = lines.plain
        prefixes = read_prefixes(files.data, starts[rows])
    is_other = np.ones(len(starts), bool)
    is_other[rows] = False
    singles: list[SingleActions] = []
    odd: list[int] = []
    plain_lines = np.bincount(source[rows], minlength=len(files.names)).tolist()
    for index, other_lines in enumerate(_other_lines(lines, is_other)):
        # `split` reports files without any line.
        actions = (
            _singles(files.names[index], other_lines) if other_lines or plain_lines[index] else None
        )
        if actions is None:
            odd.append(index)
        singles.append(actions or SingleActions())
    selected = ~prefixes.is_cdc & ~np.isin(source[rows], odd)
    rows = rows[selected]
    regular = FileActionLines(
        files.data,
        starts[rows],
        lines.ends[rows],
        Keys(files.data, prefixes.path_starts[selected], prefixes.path_ends[selected]),
        prefixes.is_remove[selected],
        source[rows],
        plain=True,
    )
    if not odd:
        return regular, singles
    parsed, beside = _parsed_lines(files, odd)
    for index, actions in zip(odd, beside, strict=True):
        singles[index] = actions
    return _concatenate_lines(regular, parsed), singles


_BLOCK_BYTES = 64 << 10
"""Approximate size of written blocks; small enough for the processor's cache."""
_FILE_PREFIXES = (b'{"add":{', b'{"remove":{', b'{"cdc":{')
_ACTION_KEY = r'"(?:add|remove|cdc)"\s*:\s*\{'
_PARSED_FIELDS = {action: ("path", "deletionVector", "dataChange") for action in ("add", "remove")}


def _other_lines(lines: TextLines, mask: Bools) -> list[list[tuple[int, bytes]]]:
    """For each file its selected lines that are not blank, with their line numbers."""
    count = len(lines.files.names)
    lines_by_file: list[list[tuple[int, bytes]]] = [[] for _ in range(count)]
    first_row = np.searchsorted(lines.source, np.arange(count)).tolist()
    rows = np.flatnonzero(mask)
    texts = lines.texts.cast(pa.large_binary()).take(integers(rows)).to_pylist()
    for row, index, line in zip(rows.tolist(), lines.source[rows].tolist(), texts, strict=True):
        if line.strip():
            lines_by_file[index].append((row - first_row[index] + 1, line))
    return lines_by_file


def _singles(name: str, lines: Sequence[tuple[int, bytes]]) -> SingleActions | None:
    """The non-file actions of a file, or None if file actions are among its lines."""
    if any(line.startswith(_FILE_PREFIXES) for _, line in lines):
        return None
    actions, beside = parse_other_lines(CommitText(name, (), (), tuple(lines), None))
    return None if beside else actions


def _parsed_lines(
    files: BufferedFiles, numbers: Sequence[int]
) -> tuple[FileActionLines, list[SingleActions]]:
    """The lines of files that contain lines in another form, read by the file action parser."""
    sources, singles = [], []
    for number in numbers:
        text = split(files.names[number], files.text(number))
        actions, beside = parse_other_lines(text)
        sources.append(FileLines.of(text, beside))
        singles.append(actions)
    parsed = parse_file_actions(
        sources, keys=MapKeys(partition_columns=frozenset()), fields=_PARSED_FIELDS
    )
    data = b"".join(source.join_lines() for source in sources)
    texts = texts_of(data, np.append(0, line_ends(data)))
    texts = texts.take(integers(np.concatenate([parsed.add_line, parsed.remove_line])))
    is_remove = np.repeat([False, True], [len(parsed.add_line), len(parsed.remove_line)])
    tables = (parsed.adds, parsed.removes)
    keys = [chunk for table in tables for chunk in logical_file_keys(table).chunks]
    changes = [chunk for table in tables for chunk in table["dataChange"].chunks]
    texts = _without_data_change(
        _single_action_lines(texts, is_remove),
        pa.concat_arrays([pa.array([], pa.bool_()), *changes]),
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
    """The offsets of all texts and the end of the last one, and a copy of their bytes."""
    _, offsets, data = texts.buffers()
    if data is None:
        return np.zeros(1, np.int64), b""
    text_offsets = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    start, end = int(text_offsets[0]), int(text_offsets[-1])
    return text_offsets - start, data.slice(start, end - start).to_pybytes()


def _single_action_lines(texts: pa.LargeStringArray, is_remove: Bools) -> pa.LargeStringArray:
    """The lines without any other actions on them, which hardly any writer produces."""
    crowded = pc.greater(pc.count_substring_regex(texts, _ACTION_KEY), 1)
    if not pc.any(crowded).as_py():
        return texts
    rows = np.flatnonzero(to_bools(crowded)).tolist()
    alone = [_one_action(texts[row].as_py(), "remove" if is_remove[row] else "add") for row in rows]
    return pc.replace_with_mask(texts, crowded, pa.array(alone, pa.large_string()))


def _one_action(line: str, name: str) -> str:
    actions = parse_present(line.encode())
    return line if len(actions) == 1 else render_action(name, actions[name]).decode()


def _without_data_change(
    texts: pa.LargeStringArray, data_change: pa.BooleanArray
) -> pa.LargeStringArray:
    # If the key occurs once, and the action has `dataChange`, the match is the key of the action.
    once = pc.equal(pc.count_substring_regex(texts, r'"dataChange"\s*:'), 1)
    changed = pc.replace_substring_regex(texts, r'"dataChange"\s*:\s*true', '"dataChange":false')
    return pc.if_else(pc.and_(once, pc.fill_null(data_change, False)), changed, texts)


def _concatenate_lines(plain: FileActionLines, parsed: FileActionLines) -> FileActionLines:
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
