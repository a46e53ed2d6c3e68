"""The Textual app of quantscope."""
