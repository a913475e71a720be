"""Copies of what objects of Python's hold: taken, put back where it was, and packed for a file."""
