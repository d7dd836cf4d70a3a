"""The policy document."""

from delta_maintenance.lazy import lazy_names

__getattr__, __dir__ = lazy_names(
    __name__, policy="Pattern Policy PolicyTable json_schema load_policy"
)
