"""Table features and table properties."""

from delta_maintenance.renamed_modules import forward_names

__getattr__ = forward_names(__name__, "delta_maintenance.protocol.features.registry")
