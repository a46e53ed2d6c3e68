"""What a format family implements, how families are found, and how stored tensors become logical ones."""
