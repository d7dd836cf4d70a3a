"""Copying row groups of data files without decoding them."""
