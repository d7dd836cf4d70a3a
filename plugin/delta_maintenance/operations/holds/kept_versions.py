"""Kept versions in the log of a table: one small file per name, in `_delta_log/_kept_versions`.

The files are beside the log, so every run of this library on the table finds them, whoever starts
it. Delta's readers and writers ignore names that begin with an underscore.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from delta_maintenance.errors import DeltaMaintenanceError, RefusedError
from delta_maintenance.operations.holds.models import KeptVersion, checked_name
from delta_maintenance.protocol.actions.model import object_with_unique_keys
from delta_maintenance.storage.core.base import Put, Store
from delta_maintenance.table.read.log_file import LOG_DIRECTORY

KEPT_VERSIONS = f"{LOG_DIRECTORY}/_kept_versions"
_SUFFIX = ".json"
_MOST_BYTES = 1 << 16


def stored_names(store: Store) -> frozenset[str]:
    """Returns the names of the kept versions in the log. One request."""
    return frozenset(
        status.path.rpartition("/")[2].removesuffix(_SUFFIX)
        for status in store.list_from(KEPT_VERSIONS)
        if status.path.endswith(_SUFFIX)
    )


def read_kept_versions(store: Store) -> tuple[KeptVersion, ...]:
    """Returns the kept versions in the log, by name.

    Raises `RefusedError` for a file that cannot be understood: its version must not be lost.
    """
    stored_versions = (_read(store, name) for name in sorted(stored_names(store)))
    return tuple(stored for stored in stored_versions if stored is not None)


def read_around_damage(store: Store, name: str) -> tuple[dict[str, KeptVersion], tuple[str, ...]]:
    """Returns the kept versions by name, and why files of other names cannot be understood.

    Raises `RefusedError` if the file of `name` cannot be understood.
    """
    stored, problems = {}, []
    for other in sorted(stored_names(store)):
        try:
            kept_version = _read(store, other)
        except RefusedError as error:
            if other == name:
                raise
            problems.append(str(error))
            continue
        if kept_version is not None:
            stored[other] = kept_version
    return stored, tuple(problems)


def read_kept_version(store: Store, name: str) -> KeptVersion | None:
    """Returns the kept version with this name; None if there is none."""
    return _read(store, checked_name(name))


def write_kept_version(
    store: Store, kept_version: KeptVersion, *, made_at: datetime, replace: bool = False
) -> Put:
    """Adds a kept version, unless its name exists already and is not to be replaced."""
    path = _path(checked_name(kept_version.name))
    data = json.dumps({**kept_version.to_json(), "made_at": made_at.isoformat()}).encode()
    if replace:
        store.put(path, data)
        return Put.DONE
    return store.put_if_absent(path, data)


def release_kept_version(store: Store, name: str) -> None:
    """Removes a kept version. A name that does not exist is not an error."""
    store.delete(_path(checked_name(name)))


def require_no_new_keep(store: Store, known_names: frozenset[str]) -> None:
    """Raises `RefusedError` if a version is kept now whose name is not known."""
    new = stored_names(store) - known_names
    if new:
        raise RefusedError(
            f"a version is now kept as {min(new)}", table=store.root, remedy="plan again"
        )


def _path(name: str) -> str:
    return f"{KEPT_VERSIONS}/{name}{_SUFFIX}"


def _read(store: Store, name: str) -> KeptVersion | None:
    path = _path(name)
    try:
        data = store.read_head(path, _MOST_BYTES + 1)
    except FileNotFoundError:
        return None
    try:
        document: Any = json.loads(data, object_pairs_hook=object_with_unique_keys)
        if not isinstance(document, dict) or document.pop("name", None) != name:
            raise ValueError
        document.pop("made_at", None)
        kept_version = KeptVersion.from_json({"name": name, **document})
        if kept_version.version is None:
            raise ValueError
    except (ValueError, RecursionError, DeltaMaintenanceError):
        raise RefusedError(
            "the file of a kept version cannot be understood",
            table=store.root,
            file=path,
            remedy="keep the version again under another name, then delete the file",
        ) from None
    return kept_version
