"""Commits that change protocol, properties or constraints."""

from delta_maintenance.renamed_modules import forward_names

__getattr__ = forward_names(__name__, "delta_maintenance.operations.table_change.operation")
