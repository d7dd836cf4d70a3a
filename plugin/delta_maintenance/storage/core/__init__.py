"""The store contract and what the backends share."""

from delta_maintenance.lazy import lazy_names

__getattr__, __dir__ = lazy_names(
    __name__,
    base="DeletedBytes FileStatus OldVersion OldVersions Put Store",
    listing="EntryKind STATUSES Skip TREE tree_of",
)
