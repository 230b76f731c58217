"""Pseudo-labels: rules that accept predictions, rules that pick targets, and the losses on them."""
