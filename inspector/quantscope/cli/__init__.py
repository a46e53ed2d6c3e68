"""The headless command line: one subcommand a file."""
