"""The operation `touch`, an exercise: adds an empty version to a table that nobody writes to."""
