"""Explain TLS errors: what is wrong, and what would be right.

A verification error means that we refuse the other side; an alert means that it refuses us.
"""

from __future__ import annotations

import ssl

_EXPIRED, _NOT_YET = (10,), (9,)
_OTHER_NAME = (62, 64)
_NO_CA = (2, 18, 19, 20, 21)
_PURPOSE = (26,)
_REVOKED, _NO_LIST, _BAD_LIST, _OLD_LIST = (23,), (3,), (5, 8, 11, 15, 16, 33, 35, 36, 44), (12,)
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST")
_ENDED = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
BROKE_OFF = "it aborted the handshake: does that port speak TLS?"
CUT_OFF = (
    "if it asks for certificates (tls.mutual), give certificate and key, of a CA that it trusts; "
    "its log has the reason (tls_refused)"
)
"""For a connection that ends right after its handshake: asyncio's servers send no alert to a client
whose certificate they refuse.
"""
_SAID = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it shows no certificate, but this port requires one "
    "(tls.mutual): give it a certificate and key of a CA that is trusted here",
    "UNSUPPORTED_PROTOCOL": "it supports no TLS version that is allowed here (1.2 or newer)",
    "NO_SHARED_CIPHER": "it supports no cipher that is allowed here",
    "ALERT_UNKNOWN_CA": "the other side does not trust the CA of our certificate: "
    "give it that CA, or use a certificate of a CA that it trusts",
    "ALERT_CERTIFICATE_REQUIRED": "the other side requires a certificate: give certificate and key",
    "ALERT_HANDSHAKE_FAILURE": "the other side ended the handshake: it may require a certificate "
    "(give certificate and key), or support none of our ciphers",
    "ALERT_CERTIFICATE_EXPIRED": "the other side says that our certificate has "
    "expired: make a new one",
    "ALERT_BAD_CERTIFICATE": "the other side refuses our certificate, or "
    "requires one: give certificate and key, of a CA that it trusts",
    "ALERT_CERTIFICATE_REVOKED": "the other side says that our certificate was "
    "revoked: make a new one",
    "ALERT_UNSUPPORTED_CERTIFICATE": "the other side refuses this kind of certificate: it may be "
    "for servers only, or for clients only",
    "ALERT_CERTIFICATE_UNKNOWN": "the other side refuses our certificate: "
    "give it the CA that signed the certificate",
    "ALERT_PROTOCOL_VERSION": "the other side supports no TLS version that is allowed here",
}


def tls_error(error: BaseException | None) -> ssl.SSLError | None:
    """Return the TLS error that `error` is, holds or was caused by, or None."""
    for _ in range(8):
        if error is None:
            return None
        # aiohttp's TLS errors hold the original error, which says what happened.
        held = getattr(error, "os_error", None) or getattr(error, "certificate_error", None)
        if isinstance(held, BaseException) and held is not error:
            error = held
        elif isinstance(error, ssl.SSLError):
            return None if isinstance(error, _ENDED) else error
        else:
            error = error.__cause__ or error.__context__
    return None


def why(error: BaseException | None) -> str:
    """Return what is wrong and what would be right; empty if `error` is not a TLS error."""
    found = tls_error(error)
    if found is None:
        return ""
    if isinstance(found, ssl.SSLCertVerificationError):
        return _unbelieved(found)
    reason = found.reason or ""
    if reason in _NO_TLS:
        return "it does not answer with TLS: is this a port without TLS (http://)?"
    for name, said in _SAID.items():
        if reason.endswith(name):
            return said
    return f"TLS failed: {reason.lower().replace('_', ' ') or found}"


def _unbelieved(error: ssl.SSLCertVerificationError) -> str:
    code = error.verify_code
    said = error.verify_message.rstrip(".")
    if code in _EXPIRED:
        return "its certificate has expired: it needs a new one (or a clock here is wrong)"
    if code in _NOT_YET:
        return "its certificate is not valid yet: a clock is wrong, here or where it was made"
    if code in _OTHER_NAME:
        return f"its certificate is for other names ({said}): use a name or address of those"
    if code in _NO_CA:
        return (
            f"the CA of its certificate is not trusted here ({said}): name the CA that "
            "signed it (ca_file of a client, OCTAVO_TLS_CA, tls.ca)"
        )
    if code in _REVOKED:
        return "its certificate was revoked by its CA (tls.crl): it needs a new one"
    if code in _OLD_LIST:
        return (
            "its CA's revocation list has ended, so no certificate of that CA is accepted here: "
            "put a newer list into tls.crl"
        )
    if code in _NO_LIST:
        return (
            "tls.crl is set, but has no revocation list of its CA: add that CA's list to the file"
        )
    if code in _BAD_LIST:
        return f"its CA's revocation list (tls.crl) cannot be used: {said}"
    if code in _PURPOSE:
        return "its certificate has another purpose: servers and clients need different kinds"
    return f"its certificate is not trusted: {said}"
