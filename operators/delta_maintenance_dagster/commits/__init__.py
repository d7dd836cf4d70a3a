"""Commits of tables: the sensor that reacts to them, and the observed asset of a table."""
