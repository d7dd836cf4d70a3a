"""Rules of vacuum: visible files, protected files and reasons for deletion."""
