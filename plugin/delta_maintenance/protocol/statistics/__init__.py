"""File statistics, as JSON and as structs."""

from delta_maintenance.renamed_modules import forward_names

__getattr__ = forward_names(__name__, "delta_maintenance.protocol.statistics.stats")
