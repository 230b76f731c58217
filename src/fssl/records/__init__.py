"""The run folder: what was configured, where it ran, what came out of each round, and how to go on."""
