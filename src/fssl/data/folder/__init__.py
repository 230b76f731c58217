"""Images in a user's folder: listed, checked, and decoded to pixels."""
