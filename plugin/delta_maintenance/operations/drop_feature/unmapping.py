"""Selects the data files to rewrite when column mapping is removed from a table.

Without a mapping, readers find columns by their logical names. If all physical names equal the
logical ones, files are kept, except those with a dropped column: a later column with its name would
restore its values. Implements "Column Mapping" for a feature that will be dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.operations.rewriting.choice import (
    Choice,
    ChoiceRules,
    Mask,
    choose,
    known_ratio,
)
from delta_maintenance.operations.rewriting.contract import Contract
from delta_maintenance.operations.rewriting.footer_reasons import PHYSICAL_NAMES, FooterReasons
from delta_maintenance.operations.rewriting.live_columns import LiveColumns, live_columns
from delta_maintenance.operations.rewriting.planning import target_size
from delta_maintenance.protocol.data_files.other_columns import may_have_dropped_columns
from delta_maintenance.protocol.schema.column_mapping import has_other_names
from delta_maintenance.protocol.schema.types import column_mapping_mode, parse_schema
from delta_maintenance.table.read.snapshot import Snapshot

_SMALL = 0.75
"""Files smaller than this share of the target are merged, as in `optimize`."""

Extent = Literal["no file", "by footer", "every file"]
"""The files to rewrite. `by footer`: those with other column names in their footers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """Data files of one version that must be rewritten."""

    files: LiveColumns
    choice: Choice
    kept: pa.Array
    """The paths of files that need no rewrite according to their footers."""

    @property
    def count(self) -> int:
        """The number of files to rewrite."""
        return len(self.choice.rows)

    @property
    def bytes(self) -> int:
        """The size of these files in bytes."""
        return int(self.files.size[self.choice.rows].sum())


def extent(snapshot: Snapshot) -> Extent:
    """Returns which files of a table must be rewritten, according to its schema."""
    metadata = snapshot.metadata
    mode = column_mapping_mode(snapshot.protocol, metadata.configuration)
    if mode == "none":
        return "no file"
    if has_other_names(parse_schema(metadata.schema_string or ""), mode):
        return "every file"
    # In mode `id`, files may have columns with arbitrary names.
    if mode == "id" or may_have_dropped_columns(metadata, mode):
        return "by footer"
    return "no file"


def unmapping_contract(snapshot: Snapshot, *, target_bytes: int) -> Contract:
    """Returns how the files must be written. Raises the errors of `Contract.of`."""
    return Contract.without_mapping(snapshot, target_bytes=target_bytes, proof="rows")


def planned_conversion(snapshot: Snapshot) -> Conversion | None:
    """Returns the files to rewrite; None if the schema shows that there are none.

    Reads footers if the schema does not decide.
    """
    if extent(snapshot) == "no file":
        return None
    files = live_columns(snapshot)
    contract = unmapping_contract(snapshot, target_bytes=target_size(snapshot, files))
    nothing = np.zeros(files.count, np.bool_)
    return conversion(snapshot, files, contract, covered=nothing, kept=pa.array([], pa.string()))


def conversion(
    snapshot: Snapshot, files: LiveColumns, contract: Contract, *, covered: Mask, kept: pa.Array
) -> Conversion:
    """Returns the files to rewrite, without those that are already `covered`.

    `kept` has the paths of files whose footers were already read. Raises the error of a footer that
    cannot be read.
    """
    wanted = ~covered
    if extent(snapshot) == "every file":
        kept = kept[:0]
    else:
        known = np.asarray(pc.is_in(files.path, value_set=kept).to_numpy(), np.bool_)
        reading = FooterReasons(
            store=snapshot.store,
            spec=contract.spec.files,
            wanted=[PHYSICAL_NAMES],
            strict=True,
        )
        looked_at = wanted & ~known
        wanted = reading(files, looked_at)[PHYSICAL_NAMES]
        fresh = files.path.filter(pa.array(looked_at & ~wanted))
        kept = pa.concat_arrays([kept, *fresh.chunks])
    target = contract.spec.target_bytes
    rules = ChoiceRules(
        target_bytes=target, small_bytes=int(target * _SMALL), deleted_share=None, full=True
    )
    footers: Mapping[str, Mask] = {PHYSICAL_NAMES: wanted}
    # Small files that need no rewrite are not merged either.
    choice = choose(files, rules, taken=~wanted, footers=footers, ratio=known_ratio(files) or 1.0)
    return Conversion(files=files, choice=choice, kept=kept)
