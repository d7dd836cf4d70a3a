"""What a policy keeps of a table, for operations that run without it."""
