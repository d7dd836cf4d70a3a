"""Writing checkpoints and log compactions."""
