"""Runs: train one experiment in its folder, train a grid in sequence or in parallel, and log the results."""
