"""The client's side of TLS, for MQTT and for HTTP."""

import os
import ssl
from typing import TypedDict

from millrace.errors import ConfigError

CA_VARIABLE = "MILLRACE_CA_FILE"
CERT_VARIABLE = "MILLRACE_CERT_FILE"
KEY_VARIABLE = "MILLRACE_KEY_FILE"


class TlsFiles(TypedDict):
    ca_file: str | None
    cert_file: str | None
    key_file: str | None


def tls_context(
    *,
    ca_file: str | None = None,
    cert_file: str | None = None,
    key_file: str | None = None,
    insecure: bool = False,
) -> ssl.SSLContext:
    """Trusts the authorities of `ca_file`, or of the system; raises ConfigError for files that cannot be
    used."""
    for file in (ca_file, cert_file, key_file):
        if file is not None and not os.path.isfile(file):
            raise ConfigError(f"the TLS files cannot be used: there is no file {file}")
    try:
        context = ssl.create_default_context(cafile=ca_file)
        if cert_file is not None:
            context.load_cert_chain(cert_file, key_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"the TLS files cannot be used: {error}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def files_of_environment() -> TlsFiles:
    """The files that the environment names, as arguments of a client."""
    return {
        "ca_file": os.environ.get(CA_VARIABLE),
        "cert_file": os.environ.get(CERT_VARIABLE),
        "key_file": os.environ.get(KEY_VARIABLE),
    }
