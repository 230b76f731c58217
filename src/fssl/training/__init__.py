"""What clients and servers train by: which rows in which order, and how far each step goes."""
