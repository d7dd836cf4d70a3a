"""The layout of data files: their bounds, how well readers can skip files, and clustering."""
