"""Readers of container files: bounded positioned reads, headers only on open, nothing refused that can be shown."""
