"""Local file systems."""

from delta_maintenance.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__, store="LocalStore")
