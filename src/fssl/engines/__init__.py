"""Engines run the rounds: they compile and capture steps, distribute clients, and restore checkpoints."""
