"""The operation `touch`, an exercise: adds an empty version to an idle table."""
