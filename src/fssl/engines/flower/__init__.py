"""Flower as an engine: the same methods, with clients in a Ray cluster or at separate sites.

The only place that knows Flower.
"""
