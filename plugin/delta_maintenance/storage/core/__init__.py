"""The store contract and what the backends share."""
