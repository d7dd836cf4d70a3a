"""Reading data files."""

from delta_maintenance.lazy import lazy_names

__getattr__, __dir__ = lazy_names(
    __name__,
    bins="Bin RewriteSpec RewrittenBin",
    data_file_writer="DataFileSpec GROUP_BYTES writes_bloom_filters",
)
