"""Your own images: what lies in a folder, what is wrong with it, and how files become pixels."""
