"""Every file system that fsspec knows, for reading."""
