"""Statistics of files that get a deletion vector ("Per-file Statistics")."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.statistics.as_json import read_statistics

_TIGHT = '"tightBounds"'
_STATED = pa.struct([("numRecords", pa.int64()), ("tightBounds", pa.bool_())])


def with_wide_bounds(stats: pa.StringArray, rows: pa.Int64Array) -> pa.StringArray:
    """Returns JSON statistics that state `rows` physical rows, and bounds that may be those of
    deleted rows. Other members stay unchanged.

    Statistics that cannot be changed so are replaced by ones without bounds.
    """
    stated = read_statistics(stats, _STATED)
    number, tight = (pc.struct_field(stated, name) for name in ("numRecords", "tightBounds"))
    counts = rows.cast(pa.string())
    alone = pc.binary_join_element_wise('{"numRecords":', counts, f",{_TIGHT}:false}}", "")
    members = pc.replace_substring_regex(stats, r"^\s*\{\s*", "")
    counted = pc.binary_join_element_wise('{"numRecords":', counts, ",", members, "")
    wide = pc.if_else(pc.is_null(number), counted, stats)
    changed = pc.replace_substring_regex(wide, rf"{_TIGHT}\s*:\s*true", f"{_TIGHT}:false")
    added = pc.replace_substring_regex(wide, r"\s*\}\s*$", f",{_TIGHT}:false}}")
    wide = pc.if_else(pc.is_null(tight), added, changed)
    found = read_statistics(wide, _STATED)
    number, tight = (pc.struct_field(found, name) for name in ("numRecords", "tightBounds"))
    valid = pc.and_(pc.equal(number, rows), pc.invert(tight))
    # A column may have the name of the key.
    valid = pc.and_(valid, pc.equal(pc.count_substring(wide, _TIGHT), 1))
    return pc.if_else(pc.fill_null(valid, False), wide, alone)
