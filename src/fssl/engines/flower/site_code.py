"""User-defined methods and networks at a site, used if they exist, are allowed, and match the server's.

A server sends no code this way. It names a function and its checksum; a site takes the file from its own folder.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ...config import Config
from ...errors import UserError
from ...system.user_code import digest_of, short_name, user_file
from .messages import SiteError

FOLDER = "own"  # next to site.toml


def with_own_files(config: Config, site: Path, allowed: Sequence[str]) -> Config:
    """Return the settings with the site's files in place of the server's; each file is checked before it runs."""
    method, model = config.method, config.model
    method = replace(method, name=own_name("method", method.name, method.digest, site, allowed))
    model = replace(model, name=own_name("model", model.name, model.digest, site, allowed))
    return replace(config, method=method, model=model)


def own_name(key: str, name: str, digest: str | None, site: Path, allowed: Sequence[str]) -> str:
    """Return the name of the same function in this site's folder; a built-in name stays."""
    file = user_file(name)
    if file is None:
        return name
    wanted, plus, plugins = short_name(name).partition("+")
    if wanted not in allowed:
        raise SiteError(f"{wanted}: the operator of this site has not allowed it (own in site.toml)")
    place = site / FOLDER / file.name
    if not place.is_file():
        raise SiteError(f"{wanted}: allowed, but this site has no file {FOLDER}/{file.name}")
    own = f"{place}:{wanted.rpartition(':')[2]}{plus}{plugins}"
    try:
        same = digest is not None and digest_of(key, own, digest) is not None
    except UserError:
        same = False
    if not same:
        raise SiteError(f"{wanted}: this site's {FOLDER}/{file.name} differs from the run's file")
    return own
