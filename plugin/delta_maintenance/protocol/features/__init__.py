"""Table features and table properties."""
