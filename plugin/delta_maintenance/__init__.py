"""Maintenance for Delta Lake tables."""

__version__ = "0.1.0"
