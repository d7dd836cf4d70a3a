"""Actions of the log: their fields, file actions as columns, paths and deletion vectors."""

from delta_maintenance.renamed_modules import forward_names

__getattr__ = forward_names(__name__, "delta_maintenance.protocol.actions.model")
