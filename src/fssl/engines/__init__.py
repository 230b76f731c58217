"""Engines move records around: they compile, capture, deal out clients and restore, and learn nothing."""
