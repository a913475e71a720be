"""One `fit`: built, run epoch by epoch, delivered. The only room that knows all stages.

`Trainer` imports its modules with its first `fit`, as they need most of the package.
"""
