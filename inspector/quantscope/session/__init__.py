"""Jobs, progress, cancellation and the pipeline from a path to an inspection."""
