"""From raw files to what each client holds."""
