"""What fssl asks of the machine: files that are whole, processes, signals, and a user's own Python files."""
