"""The comparison with what a user would pick instead, its tables and plots."""
