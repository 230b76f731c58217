"""Deployments: folders, keys and Flower's own programs, started and monitored with safe settings."""
