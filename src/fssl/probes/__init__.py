"""What is measured while a client trains, added up on the device."""
