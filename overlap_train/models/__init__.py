"""The networks that examples and benchmarks use."""
