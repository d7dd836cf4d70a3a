"""The ledger: a Delta table with a row for every operation that ran, whoever ran it."""

from delta_maintenance.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__, table="Delivery LedgerTable")
