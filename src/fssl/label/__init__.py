"""Pseudo-labels: decide what is sure, pick the target, and the losses on it."""
