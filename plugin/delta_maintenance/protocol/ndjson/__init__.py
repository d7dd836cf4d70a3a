"""The text of commit files: newline-delimited JSON to Arrow columns."""
