"""Rewriting the rows of a bin in the order of a curve, within limited memory."""
