"""What only a whole `fit` shows: its contracts, across the rooms."""
