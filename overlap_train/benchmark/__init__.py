"""The comparison with what a user would run instead: systems, workloads, runs, tables, plots, report."""
