"""Measures of a client's training, summed on the device."""
