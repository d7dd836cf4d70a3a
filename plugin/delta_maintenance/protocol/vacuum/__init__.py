"""Which files a vacuum may see and which it must keep."""
