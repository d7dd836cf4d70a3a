"""Table schemas: types, column mapping, type widening and partition values."""

from delta_maintenance.renamed_modules import forward_names

__getattr__ = forward_names(__name__, "delta_maintenance.protocol.schema.types")
