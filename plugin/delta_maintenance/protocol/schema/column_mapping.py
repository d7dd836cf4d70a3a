"""Enabling column mapping on a table that already has files ("Column Mapping").

The files store the columns under their logical names, which become the physical names. Every struct
field at every level gets a column ID; list elements, map keys and map values are not fields.
"""

from __future__ import annotations

from delta_maintenance.errors import RefusedError
from delta_maintenance.protocol.schema.edit import Digits, Field, edit_fields
from delta_maintenance.protocol.schema.types import parse_schema, walk

MODE = "delta.columnMapping.mode"
MAX_COLUMN_ID = "delta.columnMapping.maxColumnId"
COLUMN_ID = "delta.columnMapping.id"
PHYSICAL_NAME = "delta.columnMapping.physicalName"


def mapped_by_name(schema_string: str, *, max_column_id: int = 0) -> tuple[str, int]:
    """The schema with an ID and a physical name for every field, and the highest ID.

    New IDs start above `max_column_id` and all IDs in the schema, and are assigned in the order of
    the fields, parents first, as in Delta Spark. Existing IDs do not change.

    Raises `RefusedError` if the schema contains duplicate IDs, or physical names that differ from
    the names under which the columns are stored.
    """
    ids = []
    for path, field in walk(parse_schema(schema_string)):
        name = field.metadata.get(PHYSICAL_NAME, field.name)
        if name != field.name:
            raise RefusedError(
                f"the column {'.'.join(path)} has the physical name {name!r} from an earlier "
                "column mapping, but is stored under its logical name",
                remedy="remove the column mapping metadata from the schema with Delta Spark",
            )
        if COLUMN_ID in field.metadata:
            ids.append(field.metadata[COLUMN_ID])
    unusable = [found for found in ids if not isinstance(found, int) or ids.count(found) > 1]
    if unusable:
        raise RefusedError(
            f"the schema has the column id {unusable[0]!r} from an earlier column mapping, which "
            "is invalid or not unique",
            remedy="remove the column mapping metadata from the schema with Delta Spark",
        )
    highest = max([max_column_id, *ids])

    def map_field(field: Field) -> None:
        nonlocal highest
        metadata = field.get("metadata") or {}
        if COLUMN_ID not in metadata:
            highest += 1
            metadata[COLUMN_ID] = Digits(highest)
        metadata[PHYSICAL_NAME] = field["name"]
        field["metadata"] = metadata

    return edit_fields(schema_string, map_field), highest
