"""Teacher-forced logits of one model under several readings: NLL, KL, and which reading the text prefers."""
