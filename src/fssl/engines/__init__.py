"""Engines move records around: they choose devices, compile, capture and checkpoint, and learn nothing."""
