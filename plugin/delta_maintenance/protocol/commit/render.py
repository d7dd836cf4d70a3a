"""Rendering a commit as the text of its file.

Implements the writer's part of "Delta Log Entries": one action with one key per line, `commitInfo`
first. File actions are rendered column by column, because a commit can contain tens of thousands.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.actions.model import Json
from delta_maintenance.protocol.commit.staged import StagedActions

_ROWS = 1 << 14
"""Rows rendered per step; the strings of one Arrow array must stay below 2 GiB."""


def render_commit(commit_info: Json, actions: StagedActions) -> bytes:
    """The bytes of the commit file. Null fields are omitted; nulls in maps are kept."""
    lines = [_line("commitInfo", commit_info)]
    if actions.protocol is not None:
        lines.append(_line("protocol", actions.protocol.to_json()))
    if actions.metadata is not None:
        lines.append(_line("metaData", actions.metadata.to_json()))
    lines.extend(_line("txn", txn.to_json()) for txn in actions.txns)
    lines.extend(_line("domainMetadata", domain.to_json()) for domain in actions.domains)
    lines.extend(_file_lines("remove", actions.removes))
    lines.extend(_file_lines("add", actions.adds))
    lines.extend(_file_lines("cdc", actions.changes))
    return b"".join(lines)


def _line(name: str, value: Json) -> bytes:
    text = json.dumps({name: value}, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode() + b"\n"


def _file_lines(action: str, batch: pa.Table) -> Iterator[bytes]:
    for at in range(0, batch.num_rows, _ROWS):
        rows = batch.slice(at, _ROWS)
        columns = [_one_array(column) for column in rows.columns]
        objects = _objects(rows.column_names, columns, rows.num_rows)
        texts = pc.binary_join_element_wise(f'{{"{action}":', objects, "}\n", "")
        # The strings of one array are adjacent in its data buffer, so the buffer holds the lines.
        offsets = np.frombuffer(texts.buffers()[1], np.int32)
        start, end = offsets[texts.offset], offsets[texts.offset + len(texts)]
        yield texts.buffers()[2].slice(int(start), int(end - start)).to_pybytes()


def _objects(names: list[str], columns: list[pa.Array], rows: int) -> pa.Array:
    # A null is an omitted field: its pair is empty, including the comma.
    pairs = [
        pc.fill_null(pc.binary_join_element_wise(f",{_key(name)}:", _texts(column), ""), "")
        for name, column in zip(names, columns, strict=True)
    ]
    joined = pc.binary_join_element_wise(pa.array([""] * rows, pa.string()), *pairs, "")
    return pc.binary_join_element_wise("{", pc.utf8_slice_codeunits(joined, 1), "}", "")


def _key(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


def _texts(values: pa.Array) -> pa.Array:
    """Each value as JSON text; nulls stay null."""
    kind = values.type
    if pa.types.is_null(kind):
        return values.cast(pa.string())
    if pa.types.is_string(kind):
        return _quote_texts(values)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return values.cast(pa.string())
    if pa.types.is_struct(kind):
        # `pc.struct_field` takes time for each field of the struct.
        texts = _objects([child.name for child in kind], values.flatten(), len(values))
    elif pa.types.is_map(kind):
        items = pc.fill_null(_texts(values.items), "null")
        entries = pc.binary_join_element_wise(_texts(values.keys), items, ":")
        texts = _join_objects("{", values.offsets, entries, "}")
    elif pa.types.is_list(kind):
        entries = pc.fill_null(_texts(values.values), "null")
        texts = _join_objects("[", values.offsets, entries, "]")
    else:
        return pa.array([_scalar(value) for value in values.to_pylist()], pa.string())
    return pc.if_else(pc.is_valid(values), texts, pa.scalar(None, pa.string()))


def _join_objects(opening: str, offsets: pa.Array, entries: pa.Array, closing: str) -> pa.Array:
    # Copied, because `from_arrays` does not accept the sliced offsets of a sliced array.
    lists = pa.ListArray.from_arrays(pa.array(offsets.to_numpy().copy(), pa.int32()), entries)
    return pc.binary_join_element_wise(opening, pc.binary_join(lists, ","), closing, "")


def _quote_texts(texts: pa.Array) -> pa.Array:
    if pc.any(pc.match_substring_regex(texts, r'[\x00-\x1f"\\]')).as_py():
        texts = pc.replace_substring(texts, "\\", "\\\\")
        texts = pc.replace_substring(texts, '"', '\\"')
        if pc.any(pc.match_substring_regex(texts, r"[\x00-\x1f]")).as_py():
            for code in range(0x20):
                texts = pc.replace_substring(texts, chr(code), f"\\u{code:04x}")
    return pc.binary_join_element_wise('"', texts, '"', "")


def _scalar(value: Any) -> str | None:
    return None if value is None else json.dumps(value, allow_nan=False)


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays([pa.array([], column.type), *column.chunks])
