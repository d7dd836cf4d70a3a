"""The ledger: a Delta table with a row for every operation that ran, whoever ran it."""
