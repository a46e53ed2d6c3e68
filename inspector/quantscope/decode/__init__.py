"""From bytes to codes and values: bit fields, small floats, roundings and ggml blocks, vectorised in numpy."""
