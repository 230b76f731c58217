"""Certificates and keys: a CA of this deployment's own, the server's certificate, one key pair per site."""

import datetime
import ipaddress
import os
from pathlib import Path
from shutil import copyfile
from typing import Any

from ..errors import UserError
from .home import ServerPart

DAYS = 365


def make_keys(server: ServerPart, home: Path) -> list[Path]:
    """Everything that is not there yet; what was made. The CA's key is needed only for further certificates."""
    made = certificates(server) + [path for name in server.sites for path in site_key(server, home / name)]
    for name in server.sites:
        if (home / name).is_dir():
            copyfile(server.keys / "ca.crt", home / name / "ca.crt")
    return made


def certificates(server: ServerPart) -> list[Path]:
    folder = server.keys
    files = [folder / name for name in ("ca.key", "ca.crt", "server.key", "server.pem")]
    there = [f for f in files if f.exists()]
    if len(there) == len(files):
        return []
    if there:
        raise UserError(f"{folder} has {there[0].name} but not all of {', '.join(f.name for f in files)}; remove them")
    from cryptography.hazmat.primitives.asymmetric import ec

    folder.mkdir(parents=True, exist_ok=True)
    ca, own = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    ca_certificate = signed("fssl deployment CA", ca, None, ca, [])
    certificate = signed(server.names[0], own, ca_certificate, ca, server.names)
    for path, content in zip(files, (pem(ca), text(ca_certificate), pem(own), text(certificate)), strict=True):
        write_private(path, content)
    return files


def signed(name: str, key: Any, issuer: Any, issuer_key: Any, names: list[str]) -> Any:
    """A certificate for `key`: a CA's own without an issuer, else a server's for these names."""
    from cryptography import x509
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    is_ca = issuer is None
    usage = dict.fromkeys(
        [
            "content_commitment",
            "key_encipherment",
            "data_encipherment",
            "key_agreement",
            "encipher_only",
            "decipher_only",
        ],
        False,
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if is_ca else issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        .add_extension(
            x509.KeyUsage(digital_signature=not is_ca, key_cert_sign=is_ca, crl_sign=is_ca, **usage), critical=True
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )
    if not is_ca:
        builder = builder.add_extension(x509.SubjectAlternativeName([alternative(n) for n in names]), critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    return builder.sign(issuer_key, SHA256())


def alternative(name: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def site_key(server: ServerPart, site: Path) -> list[Path]:
    """A key pair in the site's folder; its public half in the server's, which admits the site."""
    admitted = server.keys / f"{site.name}.pub"
    if admitted.exists():
        return []
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ec

    site.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption())
    public = key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
    write_private(site / "key", private)
    (site / "key.pub").write_bytes(public + b"\n")
    admitted.write_bytes(public + b"\n")
    return [site / "key", admitted]


def pem(key: Any) -> bytes:
    from cryptography.hazmat.primitives import serialization as form

    data: bytes = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    return data


def text(certificate: Any) -> bytes:
    from cryptography.hazmat.primitives import serialization as form

    data: bytes = certificate.public_bytes(form.Encoding.PEM)
    return data


def write_private(path: Path, data: bytes) -> None:
    """Readable by its owner only, from the first byte on."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
