"""`python -m fssl` is the same as the `fssl` command."""

from .cli import main

main()
