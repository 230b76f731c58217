"""One client's training step, its round, and the test of the global model."""
