"""The only door to Keras's private API, used where nothing public serves.

Each module is imported by name and says which private names it leans on; `tests/keras` fails, name by name,
when a new Keras moves one.
"""
