"""Inference: load trained models from run folders, and apply them to new images."""
