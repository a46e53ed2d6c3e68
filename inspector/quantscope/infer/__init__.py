"""From shapes and bytes to inferred values: equations solved, statistics weighed, declarations compared."""
