"""Weak and strong views of images, batched and integer-exact."""
