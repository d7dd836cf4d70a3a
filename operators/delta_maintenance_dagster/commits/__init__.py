"""Commits of tables: the sensor that wakes on them, and the observed asset of a table."""
