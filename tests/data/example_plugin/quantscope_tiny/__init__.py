"""An example of a plugin: one family, one rule."""
