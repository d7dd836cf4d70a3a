"""Data files: their columns, their names and a digest of their rows."""

from delta_maintenance.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__, layout="DataFileLayout PARQUET_ID", names="FileNaming")
