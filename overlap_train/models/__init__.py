"""The networks that examples and benchmarks use; each module returns uncompiled Keras models."""
