"""Data files: their columns, their names and a digest of their rows."""
