"""Checks of what reaches a server: its URL, headers and certificates, and the origins of web pages."""

import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from keras_transformer.checks import check

PORTS = {"http": "80", "https": "443"}
ORIGIN = r"(?P<scheme>https?)://([0-9a-z_-]+(\.[0-9a-z_-]+)*|\[[0-9a-f:.]+\])(:(?P<port>[1-9]\d{0,4}))?"


def checked_headers(headers):
    """Returns headers as a dict with names in lower case, or raises `ValueError`."""
    checked, headers = {}, {} if headers is None else headers
    # The values may be secrets, so no message shows them.
    rule = (
        "`headers` must be a dict of printable ASCII, and a name may hold letters, digits, `-`, `_` and `.` only. "
        "Received: "
    )
    if not isinstance(headers, Mapping):
        raise ValueError(f"{rule}a {type(headers).__name__}.")
    for name, value in headers.items():
        is_text = all(
            isinstance(part, str) and part.isascii() and part.isprintable() for part in (name, value)
        )
        if not is_text or not re.fullmatch("[0-9A-Za-z_.-]+", name):
            raise ValueError(f"{rule}the header {name!r:.200}.")
        checked[name.lower()] = value.strip()
    return checked


def check_certificates(scheme, **files):
    """Raises `ValueError` for files of certificates that a client cannot use."""
    for name, path in files.items():
        if path is not None and not Path(path).is_file():
            raise ValueError(f"`{name}` must be a PEM file. Received: {name}={str(path)!r}.")
    authorities, certificate, key = (
        files[name] for name in ("certificates", "client_certificate", "client_key")
    )
    if authorities is not None:
        try:
            ssl.create_default_context(cafile=authorities)
        except OSError as error:
            raise ValueError(
                f"`certificates` must hold certificates in PEM. Received: certificates={str(authorities)!r}: {error}"
            ) from None
    rule = "`client_key` must come with `client_certificate`."
    check(certificate is not None or key is None, rule, client_key=key)
    if certificate is None:
        return
    rule = "`client_certificate` must come with TLS, a `url` of https:// or grpcs://."
    check(scheme in ("https", "grpcs"), rule, client_certificate=str(certificate))
    try:
        # An encrypted key would ask for its password on the terminal.
        ssl.create_default_context().load_cert_chain(certificate, key, password=lambda: "")
    except (OSError, ValueError) as error:
        raise ValueError(
            "`client_certificate` and `client_key` must be a certificate and its key without a password, in PEM. "
            f"Received: client_certificate={str(certificate)!r}, client_key={key and str(key)!r}: {error}"
        ) from None


def scheme_of(url):
    """Returns the scheme of a URL, or raises `ValueError` if a client cannot use it."""
    if isinstance(url, str) and "@" in url:
        raise ValueError("`url` must not hold a password: use `headers`. Received: a URL with an @.")
    if isinstance(url, str) and ("?" in url or "#" in url):
        raise ValueError("`url` must not have a query: use `headers`. Received: a URL with one.")
    try:
        parts = urlsplit(url)
        usable = parts.hostname and parts.port != 0 and url.isprintable() and " " not in url
        if parts.scheme in ("http", "https") and usable:
            return parts.scheme
        if parts.scheme in ("grpc", "grpcs") and usable and parts.port and not parts.path.strip("/"):
            return parts.scheme
    except (AttributeError, TypeError, ValueError):
        # It is not a string, or the port is not a number.
        pass
    raise ValueError(
        f"`url` must be http[s]://host[:port][/path] or grpc[s]://host:port. Received: url={url!r}."
    )


def checked_origins(origins):
    """Returns the origins of web pages as a tuple, or raises `ValueError` for one that no browser sends."""
    rule = (
        "`origins` must be a list of origins as browsers send them, such as https://my.site or http://127.0.0.1:8080: "
        "scheme, host in small letters, and the port unless it is that of the scheme; without a path."
    )
    check(isinstance(origins, (list, tuple)), rule, origins=origins)
    for origin in origins:
        found = isinstance(origin, str) and re.fullmatch(ORIGIN, origin, re.ASCII)
        port = found and found["port"]
        check(
            found and (port is None or (0 < int(port) < 2**16 and port != PORTS[found["scheme"]])),
            rule,
            origin=origin,
        )
    return tuple(origins)
