"""Local file systems."""
