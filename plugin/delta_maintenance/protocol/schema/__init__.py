"""Table schemas: types, column mapping, type widening and partition values."""

from delta_maintenance.lazy import lazy_names

__getattr__, __dir__ = lazy_names(
    __name__,
    types=(
        "ArrayType DecimalType DeltaType MapType PrimitiveType StructField StructType "
        "TypeChange UnknownType column_mapping_mode duplicate_names has_bounds parse_schema "
        "physical_name physical_schema require_known_changes to_arrow_type type_changes walk"
    ),
)
