"""The order of rows that clients and servers train on, and the size of their steps."""
