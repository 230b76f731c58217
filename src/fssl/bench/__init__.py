"""Benchmarks: fssl compared with an ordinary PyTorch loop, and the cost of each method's step."""
