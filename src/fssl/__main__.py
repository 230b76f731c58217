"""`python -m fssl` is the same as the `fssl` command."""

from .cli.app import main

main()
