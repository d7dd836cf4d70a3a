"""Transactions: preconditions, conflicts, idempotency, outcomes and version checksums."""
