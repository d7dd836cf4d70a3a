"""Policies: which tables need which maintenance and when, and running it."""
