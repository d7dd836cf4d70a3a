"""Arrow arrays: conversions and hashing that the protocol modules share."""
