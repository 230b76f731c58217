"""Files that let a machine run a deployment's parts by itself: units for systemd, an image and a compose file."""

import sys
from pathlib import Path

UNIT = """# {what}
# Copy it to /etc/systemd/system, set its user, then: systemctl enable --now {name}
[Unit]
Description=fssl: {what}
Wants=network-online.target
After=network-online.target

[Service]
User={user}
ExecStart={python} -m fssl deploy {command} --home {folder}
Restart=on-failure
RestartSec=30
KillSignal=SIGTERM
TimeoutStopSec=60
UMask=0077
Environment=FSSL_CACHE={folder}/cache NO_COLOR=1
# What it may write: its own folder{more}. All else of the system is read-only.
ReadWritePaths={folder}
ProtectSystem=strict
ProtectHome=read-only
PrivateTmp=yes
NoNewPrivileges=yes
CapabilityBoundingSet=
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
{devices}

[Install]
WantedBy=multi-user.target
"""
CONTAINERFILE = """# Written by `fssl deploy init --container`; we have not run it.
FROM docker.io/library/python:3.11-slim
RUN pip install --no-cache-dir 'fssl[flower]=={version}' && useradd --create-home fssl
USER fssl
ENV FSSL_CACHE=/part/cache
ENTRYPOINT ["fssl", "deploy"]
"""
COMPOSE = """# Written by `fssl deploy init --container`; we have not run it. Keep only the services of this machine.
services:
"""
SERVICE = """  {name}:
    build: {{context: ., dockerfile: Containerfile}}
    command: [{command}, --home, /part]
    network_mode: host
    read_only: true
    tmpfs: [/tmp]
    cap_drop: [ALL]
    security_opt: ["no-new-privileges:true"]
    restart: on-failure
    volumes: [{volumes}]
"""


def unit_files(made: list[Path]) -> dict[Path, str]:
    """Return a systemd unit for each part of a deployment, by the file's path."""
    return {folder / f"{unit_name(folder)}.service": unit(folder) for folder in made}


def unit_name(folder: Path) -> str:
    return f"fssl-{folder.name}"


def unit(folder: Path) -> str:
    is_server = folder.name == "server"
    return UNIT.format(
        what="the server of a deployment" if is_server else f"{folder.name} of a deployment",
        name=unit_name(folder),
        user=folder.owner(),
        python=escape_path(sys.executable),
        command="server" if is_server else "site",
        folder=escape_path(str(folder.resolve())),
        more=", and the folders of its runs: add those that you name by --out" if is_server else "",
        devices="PrivateDevices=yes" if is_server else "# PrivateDevices=yes  # for a site without a GPU",
    )


def escape_path(text: str) -> str:
    """Return a path as one word of a unit."""
    return text.replace("\\", "\\\\").replace("%", "%%").replace(" ", "\\x20")


def container_files(home: Path, made: list[Path]) -> dict[Path, str]:
    """Return an image's files, and a service for each part."""
    from .. import __version__

    services = (
        SERVICE.format(
            name=folder.name,
            command="server" if folder.name == "server" else "site",
            volumes=f'"./{folder.name}:/part"' + ("" if folder.name == "server" else ', "/path/to/images:/images:ro"'),
        )
        for folder in made
    )
    return {
        home / "Containerfile": CONTAINERFILE.format(version=__version__),
        home / "compose.yaml": COMPOSE + "".join(services),
    }
