"""A Delta table as it stands in a store: log segments, snapshots, checkpoints."""
