"""Switch off everything that dependencies send, look up or install unasked, before any of them is imported.

`fssl` imports this module first. Programs that it starts inherit the variables, as Ray's workers and Flower's do.
torch, matplotlib, plotly, TensorBoard, FastAPI, uvicorn, pydicom and pylibjpeg do nothing of the kind (checked in their
source, and in `tests/system/test_silence.py`).
"""

import os

SWITCHED_OFF = {
    "DO_NOT_TRACK": "1",  # the convention of https://donottrack.sh
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",  # otherwise every run installs the app's dependencies
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_TRACING_ENABLED": "0",
    "HF_HUB_DISABLE_TELEMETRY": "1",  # of huggingface_hub and hf_xet
    "HF_HUB_DISABLE_UPDATE_CHECK": "1",
    "ORT_DISABLE_TELEMETRY": "1",  # onnxruntime: a device id in the user's cache, and an event to its vendor
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # no warning about the behavior of later versions without GPUs
    "RAY_USAGE_STATS_ENABLED": "0",
    "WANDB_ERROR_REPORTING": "false",  # crash reports, also with records.wandb = "offline"
}
NEAR = "localhost,127.0.0.1,::1"  # programs of this machine, of which the environment's proxy must not learn
os.environ.update(SWITCHED_OFF)
for name in ("NO_PROXY", "no_proxy"):
    if NEAR not in (given := os.environ.get(name, "")):
        os.environ[name] = f"{given},{NEAR}" if given else NEAR
