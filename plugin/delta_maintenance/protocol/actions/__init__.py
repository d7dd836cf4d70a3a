"""Actions of the log: their fields, file actions as columns, paths and deletion vectors."""
