"""Table schemas: types, column mapping, type widening and partition values."""
