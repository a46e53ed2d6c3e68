"""The report: one document, many renderings."""
