"""Two checkpoints, or two readings of one, side by side: pairs, contracts, zero planes, values, folding."""
