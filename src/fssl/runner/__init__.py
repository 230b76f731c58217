"""Runs: one experiment into its folder, the runs of a grid in sequence or in parallel, and their loggers."""
