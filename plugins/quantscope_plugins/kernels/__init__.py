"""One file per real kernel."""
