"""From raw files to the images of each client."""
