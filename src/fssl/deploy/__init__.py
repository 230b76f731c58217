"""Deployments for people: folders, keys and Flower's own programs, started and watched with safe settings."""
