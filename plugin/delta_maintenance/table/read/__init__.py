"""Reading a log: log segment, replay, snapshot and history."""
