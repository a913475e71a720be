"""B: the training steps, many of them in each compiled call."""
