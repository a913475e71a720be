"""The command `overlap-train`: what is there, what a script would do, and what would make it faster.

Nothing of TensorFlow is imported before a command needs it.
"""
