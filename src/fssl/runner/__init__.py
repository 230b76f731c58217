"""Runs: one experiment into its folder, the runs of a grid one after another or side by side, and their loggers."""
