"""The files of the state folder: their names, and how one is read and replaced.

| file | contains | if it is damaged |
|---|---|---|
| `*.DIGEST.json` | the state of a table or a pattern | it is shown as unreadable, and replaced |
| `DIGEST.lease` | who works on a table, and until when | the table is free |
| `DIGEST.lease.DIGEST` | who replaces or deletes a lease | it may be replaced |
| `OPERATION.DIGEST.files` | the files of the last plan to approve | the page lists none |
| `failures.reported` | the failures that were reported | they are reported once more |
| `clones.references` | the folders that the logs of tables refer to | the logs are read again |
| `catalog-*.DIGEST.listing` | the last listing of a catalog | the catalog is asked for everything |
| `patterns.listing` | the patterns that have matched tables | no pattern has matched before |
| `ledger/RUN.json` | rows that are not yet in the ledger | it stays, and a warning names it |
| `budget/*.spent` | what operations of the last days took, in their names | it is left out |
| `ledger/unreachable` | why the ledger failed; only its time counts | |

A file is replaced as a whole, so that others never read half of one. A folder that cannot be read
is not a damaged file: errors of the store are the caller's.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

from pydantic import TypeAdapter

from delta_maintenance.address import digest_of, identity_of, place_of
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations.core.record import Record
from delta_maintenance.storage import Store

T = TypeVar("T")

ENTRY_SUFFIX = ".json"
REPORTED_FILE = "failures.reported"
REFERENCES_FILE = "clones.references"
PATTERNS_FILE = "patterns.listing"
LEDGER_FOLDER = "ledger"
BUDGET_FOLDER = "budget"
UNREACHABLE_FILE = f"{LEDGER_FOLDER}/unreachable"


@dataclass(frozen=True)
class StateFile(Generic[T]):
    """A kind of files in the state folder."""

    form: type[T]
    """The type of what such a file contains."""
    max_bytes: int = 64 << 20
    """Longer files are damaged."""

    def load(self, store: Store, name: str) -> T:
        """Returns what a file contains. `FileNotFoundError` if it does not exist, `ValueError` if
        it is damaged.
        """
        return self._adapter.validate_json(store.read_head(name, self.max_bytes))

    def read(self, store: Store, name: str) -> T | None:
        """Returns what a file contains; None if it does not exist or is damaged."""
        try:
            return self.load(store, name)
        except (FileNotFoundError, ValueError):
            return None

    def to_bytes(self, value: T) -> bytes:
        """Returns the content of a file. `ValueError` for text that is not valid Unicode, unless it
        is in a record: the file of a record is written, and is damaged when it is read.
        """
        if isinstance(value, Record):
            return json.dumps(value.to_json()).encode()
        return self._adapter.dump_json(value)

    def write(self, store: Store, name: str, value: T) -> None:
        """Replaces a file."""
        store.put(name, self.to_bytes(value))

    @cached_property
    def _adapter(self) -> TypeAdapter[T]:
        return TypeAdapter(self.form)


def table_file(uri: str) -> str:
    """Returns the name of the entry of the table at an address."""
    try:
        path = place_of(uri)[2]
    except InvalidRequestError:
        path = ""
    return f"{_to_readable(path)}.{identity_of(uri)}{ENTRY_SUFFIX}"


def pattern_file(name: str) -> str:
    """Returns the name of the entry of a pattern."""
    return f"{_to_readable(name)}.{digest_of(name)}{ENTRY_SUFFIX}"


def listing_file(catalog: str) -> str:
    """Returns the name of the listing of a catalog, by its key in the policy."""
    return f"catalog-{catalog[:80]}.{digest_of(catalog)}.listing"


def plan_file(uri: str, operation: str) -> str:
    """Returns the name of the list of files of a plan for the table at an address."""
    return f"{operation}.{identity_of(uri)}.files"


def lease_file(uri: str) -> str:
    """Returns the name of the lease of the table at an address."""
    return f"{identity_of(uri)}.lease"


def delivery_file(run_id: str) -> str:
    """Returns the name of the file with the rows of a run for the ledger."""
    return f"{LEDGER_FOLDER}/{run_id}.json"


def _to_readable(text: str) -> str:
    """Converts any text to one that every store accepts and that people can recognise."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-")[-80:] or "table"
