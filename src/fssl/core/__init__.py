"""From settings to steps: an experiment, the federation made from it, a client's step and round, and the test."""
