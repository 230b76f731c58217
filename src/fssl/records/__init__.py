"""The run folder: settings, environment, results of each round, and checkpoints to resume from."""
