"""Row tracking: row IDs, row commit versions and the high-water mark."""

from delta_maintenance.renamed_modules import forward_names

__getattr__ = forward_names(__name__, "delta_maintenance.protocol.row_tracking.domain")
