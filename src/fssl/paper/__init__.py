"""The SAGE paper: its printed numbers, and its tables and figures filled from run folders."""
