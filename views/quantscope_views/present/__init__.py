"""Presentation as pure functions: models in, styled lines out. Nothing here imports Textual."""
