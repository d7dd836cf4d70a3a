"""The `_last_checkpoint` hint: where a reader may start looking for the newest checkpoint.

Implements the sections "Last Checkpoint File", "Last Checkpoint File Schema" and "JSON checksum"
of the protocol. The file is never evidence: a hint that is missing, damaged or stale costs one
listing and changes no result, so reading answers None instead of raising. The `v2Checkpoint` object
is in no protocol text; it has the shape that Delta Spark reads and writes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from operator import itemgetter
from typing import Any, TypeGuard
from urllib.parse import quote

from delta_maintenance.protocol.actions.model import Json, Sidecar

MAX_SCHEMA_CHARACTERS = 20_000
"""A checkpoint schema whose JSON is longer than this is left out of the hint."""

MAX_EMBEDDED_ACTIONS = 30
"""A list of embedded actions longer than this is left out of the hint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastCheckpointHint:
    """What a reader takes from the hint.

    Only `version`, `parts` and `v2_path` lead anywhere. The rest is advisory: writers disagree
    about its meaning, and it is None wherever it is no plain number.
    """

    version: int
    parts: int | None = None
    """The number of files of a multi-part checkpoint; None for any other kind."""
    v2_path: str | None = None
    """The bare file name of a V2 checkpoint's manifest."""
    size: int | None = None
    size_in_bytes: int | None = None
    num_of_add_files: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class V2CheckpointHint:
    """The `v2Checkpoint` object of a hint that is to be written."""

    path: str
    """The bare file name of the manifest."""
    size_in_bytes: int
    modification_time: int
    """Milliseconds since 1970-01-01 UTC."""
    non_file_actions: tuple[Json, ...] | None = None
    """The manifest's actions other than files and sidecars, each as `{"protocol": {…}}`."""
    sidecar_files: tuple[Sidecar, ...] | None = None
    """Every sidecar of the manifest; None says nothing about them."""


def parse_hint(data: bytes) -> LastCheckpointHint | None:
    """The hint in `data`, the bytes of `_last_checkpoint`.

    None where anything about it is wrong: no JSON object, a key twice, a version that is missing, a
    part count or a manifest name that cannot be, or a checksum that neither order of sorting gives.
    """
    try:
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_object_without_duplicates,
            # A number is its own canonical form, and a float would lose trailing zeros.
            parse_float=Decimal,
            parse_constant=_refuse_constant,
        )
        if not isinstance(value, dict) or not _checksum_holds(value):
            return None
    except (ValueError, RecursionError):
        return None
    version, parts, v2 = value.get("version"), value.get("parts"), value.get("v2Checkpoint")
    if not _is_long(version) or (parts is not None and not (_is_long(parts) and parts > 0)):
        return None
    v2_path = None
    if v2 is not None:
        v2_path = v2.get("path") if isinstance(v2, dict) else None
        # A manifest has no parts, and it stands in the log directory itself.
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
    """The bytes of `_last_checkpoint`, one line, in the order of fields that Delta Spark writes.

    `size` counts all rows of the checkpoint, those of sidecars included; `size_in_bytes` all its
    files. The schema and the embedded actions are left out where they are too long. The checksum is
    left out where the two orders of sorting in use disagree about it.
    """
    # Old readers look at the first three fields only, so these come first.
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

    The protocol sorts the pairs by their paths. Delta Spark sorts the assembled `path=value` texts
    (`sort_whole_pairs`). The two differ only for arrays of more than ten scalars, since `=` comes
    after the digits.
    """
    pairs = [
        pair
        for key, item in value.items()
        if key != "checksum"
        for pair in _leaves(_quoted(key), item)
    ]
    order = "=".join if sort_whole_pairs else itemgetter(0)
    return ",".join("=".join(pair) for pair in sorted(pairs, key=order))


def checksum(value: Json, *, sort_whole_pairs: bool) -> str:
    """The MD5 of the canonical form, as 32 lower-case hexadecimal digits."""
    # Loads OpenSSL, which few tables need: most hints carry no checksum.
    import hashlib

    form = canonical_form(value, sort_whole_pairs=sort_whole_pairs)
    return hashlib.md5(form.encode("ascii"), usedforsecurity=False).hexdigest()


def _leaves(path: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(f"{path}+{_quoted(key)}", item)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _leaves(f"{path}+{index}", item)
    else:
        yield path, _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        return _quoted(value)
    return str(value) if isinstance(value, Decimal) else json.dumps(value)


def _quoted(text: str) -> str:
    return f'"{quote(text, safe="")}"'


def _both_orders_agree(value: Json) -> bool:
    by_path, by_pair = (canonical_form(value, sort_whole_pairs=order) for order in (False, True))
    return by_path == by_pair


def _checksum_holds(value: Json) -> bool:
    found = value.get("checksum")
    return found is None or any(
        found == checksum(value, sort_whole_pairs=order) for order in (False, True)
    )


def _v2_checkpoint_json(hint: V2CheckpointHint) -> dict[str, Any]:
    out: dict[str, Any] = {
        "path": hint.path,
        "sizeInBytes": hint.size_in_bytes,
        "modificationTime": hint.modification_time,
    }
    actions = hint.non_file_actions
    # The protocol action may list more than ten features, which would cost the hint its checksum;
    # these actions only save a reader one small file.
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


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key occurs twice")
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _is_long(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _long_or_none(value: Any) -> int | None:
    return value if _is_long(value) else None
