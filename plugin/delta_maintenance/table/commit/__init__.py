"""Transactions: preconditions, conflicts, idempotency, outcomes and version checksums."""

from delta_maintenance.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__, transaction="Transaction Writer")
