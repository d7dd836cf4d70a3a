"""The Spark engine: applies the same plans with PySpark. The only importer of PySpark."""

from delta_maintenance.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__, session="JobSession TaskTime executor_options")
