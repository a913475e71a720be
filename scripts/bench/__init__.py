"""Benchmarks that the wheel does not hold."""
