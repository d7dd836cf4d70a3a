"""Measures the library against a peer in the same run; see README.md beside this file."""
