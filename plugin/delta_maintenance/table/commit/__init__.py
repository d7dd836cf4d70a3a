"""Committing: transactions, their preconditions, conflicts and outcomes."""
