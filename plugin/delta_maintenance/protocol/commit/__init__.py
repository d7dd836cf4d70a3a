"""Commits: the actions to be written, their rules, their text and their conflicts."""
