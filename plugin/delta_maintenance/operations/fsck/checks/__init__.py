"""The checks of `fsck`. Each one adds findings, and none uses another."""
