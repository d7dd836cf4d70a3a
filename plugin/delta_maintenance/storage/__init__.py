"""Stores of tables: one backend per kind of storage behind one interface."""

from delta_maintenance.lazy import lazy_names
from delta_maintenance.storage.addresses import open_store
from delta_maintenance.storage.core.base import FileStatus, Put, Store

__all__ = ["FileStatus", "Put", "Store", "open_store"]

__getattr__, __dir__ = lazy_names(__name__, memory="MemoryStore")
