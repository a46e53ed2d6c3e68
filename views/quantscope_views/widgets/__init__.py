"""Widgets: each paints one kind of value and posts what a person asks for."""
