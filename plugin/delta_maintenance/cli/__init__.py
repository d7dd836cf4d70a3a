"""The command line: one verb per operation."""
