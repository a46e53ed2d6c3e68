"""Cannot be imported."""

raise ImportError("this module never loads")
