"""Definitions that all operations share."""
