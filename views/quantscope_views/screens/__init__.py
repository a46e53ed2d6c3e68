"""Screens: one a file, each shows what the workspace holds and asks the app for the rest."""
