"""What several tests share, and the scripts that measure with it: `PYTHONPATH=tests python -m helpers.NAME`."""
