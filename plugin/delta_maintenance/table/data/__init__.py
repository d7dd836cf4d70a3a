"""Reading data files."""
