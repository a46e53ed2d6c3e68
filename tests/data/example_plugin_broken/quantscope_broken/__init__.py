"""Families that fail."""
