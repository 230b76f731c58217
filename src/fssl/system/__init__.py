"""The parts of fssl next to the system: atomic files, processes, signals, and a user's own Python files."""
