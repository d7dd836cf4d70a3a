"""Whether other parts of a log agree with a version, before anything is written on top of it."""
