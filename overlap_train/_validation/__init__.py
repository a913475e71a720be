"""E and F: a snapshot is evaluated by a pool of workers and the parts are merged in order."""
