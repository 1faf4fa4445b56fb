"""HTTPS for clients: the certificate comes from files, and is read anew while connections go on."""

from __future__ import annotations

import ssl

from denvweb.core.errors import InvalidError
from fleets.router.config import Config


def tls_context(config: Config) -> ssl.SSLContext | None:
    """What to listen with; None for plain HTTP. Raises InvalidError when the certificate cannot be used."""
    if not config.tls_cert:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    certificate_load(context, config)
    return context


def certificate_load(context: ssl.SSLContext, config: Config) -> None:
    """Have connections to come use the certificate that is in the files now. Raises InvalidError, and then nothing changed."""
    spare = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # a pair that does not fit would leave the real one half changed
    try:
        for held in (spare, context):
            held.load_cert_chain(config.tls_cert, config.tls_key or None)
    except (OSError, ssl.SSLError) as error:
        raise InvalidError(f"--tls-cert {config.tls_cert} cannot be used: {error}", code="certificate-unusable") from error
