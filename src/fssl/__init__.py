"""fssl: federated semi-supervised learning, exact, fast and reproducible."""

__version__ = "0.1.0"
