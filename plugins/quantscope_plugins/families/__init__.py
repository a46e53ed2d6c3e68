"""One file per format family."""
