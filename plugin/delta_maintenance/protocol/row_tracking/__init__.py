"""Row tracking: row IDs, row commit versions and the high-water mark."""
