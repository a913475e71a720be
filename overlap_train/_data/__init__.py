"""Where the data comes from (A) and how the validation set is divided (D)."""
