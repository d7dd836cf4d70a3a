"""Reading a log: log segment, replay, snapshot and history."""

from delta_maintenance.lazy import lazy_names

__getattr__, __dir__ = lazy_names(
    __name__,
    checkpoint_reader="Checkpoint UnusableCheckpointError",
    segment="LogListing hinted_version list_log",
    snapshot="Snapshot",
    table="Table open_table",
)
