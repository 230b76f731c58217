"""Flower as an engine: the same methods, with clients in a Ray cluster or at sites of their own.

The only place that knows Flower. Importing it switches off what Flower and Ray would otherwise do unasked.
"""

import os

SWITCHED_OFF = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",  # else every run installs the app's dependencies
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # no warning about what later versions do without GPUs
}
os.environ.update(SWITCHED_OFF)
