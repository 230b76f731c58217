"""Trained models at work: loaded from a run folder, on images that they have not seen."""
