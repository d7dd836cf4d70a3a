"""The files of a version as a whole: their view in columns, their totals, what commits change."""
