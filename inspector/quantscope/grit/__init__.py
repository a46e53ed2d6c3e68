"""GRIT descriptors: 64 bytes that state the numeric contract of an array, read and checked, never trusted."""
