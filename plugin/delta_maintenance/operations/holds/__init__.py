"""What must stay: kept versions, readers and clones, and the versions and files that they hold."""

from delta_maintenance.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__, models="HeldBack Holders KeptVersion Reader")
