"""Turning column mapping on for a table that has files already ("Column Mapping").

Its columns are stored under their own names, so these become the physical names. Every field of a
struct, at every level, gets an id; elements, keys and values of lists and maps are no fields.
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
    """The schema with an id and a physical name for every field, and the highest id ever given.

    Ids go up from `max_column_id` and from those that the schema holds, in the order of the fields,
    parents first, as Delta Spark gives them. An id that a field has stays with it.

    `RefusedError` where the schema holds ids twice or physical names other than the names under
    which its columns are stored.
    """
    ids = []
    for path, field in walk(parse_schema(schema_string)):
        name = field.metadata.get(PHYSICAL_NAME, field.name)
        if name != field.name:
            raise RefusedError(
                f"the column {'.'.join(path)} has the physical name {name!r} from an earlier "
                "mapping, but is stored under its own name",
                remedy="remove what is left of column mapping from the schema with Delta Spark",
            )
        if COLUMN_ID in field.metadata:
            ids.append(field.metadata[COLUMN_ID])
    unusable = [found for found in ids if not isinstance(found, int) or ids.count(found) > 1]
    if unusable:
        raise RefusedError(
            f"the schema has the column id {unusable[0]!r} from an earlier mapping, which is no id "
            "or is there twice",
            remedy="remove what is left of column mapping from the schema with Delta Spark",
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
