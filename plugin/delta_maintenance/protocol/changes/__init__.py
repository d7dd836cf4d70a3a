"""Effects of a protocol or property change: upgrade, downgrade, client support."""
