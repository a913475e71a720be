"""What a checkpoint can hold of Python: plain values, copied, put back where they were, packed for a file."""
