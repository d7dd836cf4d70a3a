"""The `_last_checkpoint` hint, which helps readers to find the newest checkpoint.

Implements "Last Checkpoint File", "Last Checkpoint File Schema" and "JSON checksum". The file
proves nothing: a missing, damaged or outdated hint costs one listing and never changes a result, so
`parse_hint` returns None instead of raising. The object `v2Checkpoint` is not part of the protocol;
its fields are those that Delta Spark reads and writes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from operator import itemgetter
from typing import Any, TypeGuard
from urllib.parse import quote

from delta_maintenance.protocol.actions.model import Json, Sidecar, object_with_unique_keys

MAX_SCHEMA_CHARACTERS = 20_000
"""A checkpoint schema with longer JSON is omitted from the hint."""

MAX_EMBEDDED_ACTIONS = 30
"""A longer list of embedded actions is omitted from the hint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastCheckpointHint:
    """The parsed contents of the hint.

    Only `version`, `parts` and `v2_path` locate a checkpoint. The other fields are advisory:
    writers disagree about their meaning. They are None if they are not plain numbers.
    """

    version: int
    parts: int | None = None
    """The number of files of a multi-part checkpoint, None for other kinds."""
    v2_path: str | None = None
    """The file name of a V2 checkpoint's manifest, without a folder."""
    size: int | None = None
    size_in_bytes: int | None = None
    num_of_add_files: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class V2CheckpointHint:
    """The `v2Checkpoint` object of a hint to be written."""

    path: str
    """The file name of the manifest, without a folder."""
    size_in_bytes: int
    modification_time: int
    """Milliseconds since 1970-01-01 UTC."""
    non_file_actions: tuple[Json, ...] | None = None
    """The manifest's actions other than files and sidecars, each as `{"protocol": {…}}`."""
    sidecar_files: tuple[Sidecar, ...] | None = None
    """All sidecars of the manifest, or None to omit them."""


def parse_hint(data: bytes) -> LastCheckpointHint | None:
    """The hint in `data`, the bytes of `_last_checkpoint`, or None if it is invalid.

    Invalid are: data that is not a JSON object, duplicate keys, a missing version, an impossible
    part count or manifest name, and a checksum that is wrong under both sort orders.
    """
    try:
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=object_with_unique_keys,
            # Kept as text: the checksum uses the number as written, with trailing zeros.
            parse_float=Decimal,
            parse_constant=refuse_constant,
        )
        if not isinstance(value, dict) or not _checksum_matches(value):
            return None
    except (ValueError, RecursionError):
        return None
    version, parts, v2 = value.get("version"), value.get("parts"), value.get("v2Checkpoint")
    if not _is_long(version) or (parts is not None and not (_is_long(parts) and parts > 0)):
        return None
    v2_path = None
    if v2 is not None:
        v2_path = v2.get("path") if isinstance(v2, dict) else None
        # A V2 checkpoint has no parts, and its manifest is in the log directory itself.
        if parts is not None or not isinstance(v2_path, str) or not v2_path or "/" in v2_path:
            return None
    return LastCheckpointHint(
        version=version,
        parts=parts,
        v2_path=v2_path,
        size=_long_or_none(value.get("size")),
        size_in_bytes=_long_or_none(value.get("sizeInBytes")),
        num_of_add_files=_long_or_none(value.get("numOfAddFiles")),
    )


def render_hint(
    *,
    version: int,
    size: int,
    size_in_bytes: int,
    num_of_add_files: int,
    parts: int | None = None,
    v2_checkpoint: V2CheckpointHint | None = None,
    checkpoint_schema: Json | None = None,
) -> bytes:
    """The bytes of `_last_checkpoint`: one line, with the fields in the order of Delta Spark.

    `size` is the number of rows of the checkpoint, including sidecars; `size_in_bytes` is the size
    of all its files. A long schema and long lists of embedded actions are omitted. The checksum is
    omitted if it differs between the two sort orders in use.
    """
    # Old readers only read the first three fields.
    hint: dict[str, Any] = {"version": version, "size": size}
    if parts is not None:
        hint["parts"] = parts
    hint["sizeInBytes"] = size_in_bytes
    hint["numOfAddFiles"] = num_of_add_files
    if checkpoint_schema is not None and len(_dump(checkpoint_schema)) <= MAX_SCHEMA_CHARACTERS:
        hint["checkpointSchema"] = checkpoint_schema
    if v2_checkpoint is not None:
        hint["v2Checkpoint"] = _v2_checkpoint_json(v2_checkpoint)
    if _both_orders_agree(hint):
        hint["checksum"] = checksum(hint, sort_whole_pairs=False)
    return _dump(hint).encode("utf-8")


def canonical_form(value: Json, *, sort_whole_pairs: bool) -> str:
    """The text whose MD5 is the checksum of the JSON object `value`.

    The protocol sorts the pairs by their paths. Delta Spark sorts the texts `path=value`
    (`sort_whole_pairs`). The orders differ only for arrays of more than ten scalars, because `=`
    sorts after digits.
    """
    pairs = [
        pair
        for key, item in value.items()
        if key != "checksum"
        for pair in _leaves(_quote_text(key), item)
    ]
    order = "=".join if sort_whole_pairs else itemgetter(0)
    return ",".join("=".join(pair) for pair in sorted(pairs, key=order))


def checksum(value: Json, *, sort_whole_pairs: bool) -> str:
    """The MD5 of the canonical form, as 32 lower-case hexadecimal digits."""
    # Imported here because it loads OpenSSL, and most hints have no checksum.
    import hashlib

    form = canonical_form(value, sort_whole_pairs=sort_whole_pairs)
    return hashlib.md5(form.encode("ascii"), usedforsecurity=False).hexdigest()


def _leaves(path: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(f"{path}+{_quote_text(key)}", item)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _leaves(f"{path}+{index}", item)
    else:
        yield path, _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        return _quote_text(value)
    return str(value) if isinstance(value, Decimal) else json.dumps(value)


def _quote_text(text: str) -> str:
    return f'"{quote(text, safe="")}"'


def _both_orders_agree(value: Json) -> bool:
    by_path, by_pair = (canonical_form(value, sort_whole_pairs=order) for order in (False, True))
    return by_path == by_pair


def _checksum_matches(value: Json) -> bool:
    stored = value.get("checksum")
    return stored is None or any(
        stored == checksum(value, sort_whole_pairs=order) for order in (False, True)
    )


def _v2_checkpoint_json(hint: V2CheckpointHint) -> dict[str, Any]:
    out: dict[str, Any] = {
        "path": hint.path,
        "sizeInBytes": hint.size_in_bytes,
        "modificationTime": hint.modification_time,
    }
    actions = hint.non_file_actions
    # A `protocol` action may list more than ten features, so that no checksum could be written.
    # The embedded actions only save readers one small request.
    if (
        actions is not None
        and len(actions) <= MAX_EMBEDDED_ACTIONS
        and _both_orders_agree({"nonFileActions": actions})
    ):
        out["nonFileActions"] = actions
    sidecars = hint.sidecar_files
    if sidecars is not None and len(sidecars) <= MAX_EMBEDDED_ACTIONS:
        out["sidecarFiles"] = [sidecar.to_json() for sidecar in sidecars]
    return out


def _dump(value: Json) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def refuse_constant(name: str) -> Any:
    """Raises `ValueError` for NaN and infinity, which Python's parser takes for JSON."""
    raise ValueError(f"{name} is not JSON")


def _is_long(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _long_or_none(value: Any) -> int | None:
    return value if _is_long(value) else None
