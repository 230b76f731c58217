"""Flower as an engine: the same methods, with clients in a Ray cluster or at sites of their own.

The only place that knows Flower.
"""
