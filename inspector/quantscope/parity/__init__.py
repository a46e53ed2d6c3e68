"""Kernel check: a real low-bit kernel against a float64 computation on the same quantized data."""
