"""What went wrong with TLS, in words that say what would be right.

OpenSSL says `CERTIFICATE_VERIFY_FAILED`, `WRONG_VERSION_NUMBER` and `TLSV13_ALERT_…`: the first is
what we refuse, an alert is what the other side refuses of us.
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
BROKE_OFF = "it broke off the handshake: does that port speak TLS?"
CUT_OFF = (
    "if it asks for certificates (tls.mutual), give certificate and key, of a CA that it believes; "
    "its log says (tls_refused)"
)
"""Of a connection that ended right after its handshake: asyncio's servers send no alert to a client
whose certificate they do not take."""
_SAID = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it shows no certificate, and this port asks for one "
    "(tls.mutual): give it a certificate and key of a CA that is believed here",
    "UNSUPPORTED_PROTOCOL": "it speaks no version of TLS that is allowed here (1.2 or newer)",
    "NO_SHARED_CIPHER": "it knows no cipher that is allowed here",
    "ALERT_UNKNOWN_CA": "the other side does not believe the CA of the certificate that it was "
    "shown: give the other side that CA, or show a certificate of a CA that it knows",
    "ALERT_CERTIFICATE_REQUIRED": "the other side asks for a certificate and was shown none: give "
    "certificate and key",
    "ALERT_HANDSHAKE_FAILURE": "the other side ended the handshake: it may ask for a certificate "
    "(give certificate and key), or know none of the ciphers",
    "ALERT_CERTIFICATE_EXPIRED": "the other side finds that the certificate that it was shown has "
    "expired: make a new one",
    "ALERT_BAD_CERTIFICATE": "the other side does not take the certificate that it was shown, or "
    "was shown none and asks for one: give certificate and key, of a CA that it believes",
    "ALERT_CERTIFICATE_REVOKED": "the other side finds that the certificate that it was shown was "
    "revoked: make a new one",
    "ALERT_UNSUPPORTED_CERTIFICATE": "the other side does not take such a certificate: it may be "
    "for servers alone, or for clients alone",
    "ALERT_CERTIFICATE_UNKNOWN": "the other side does not take the certificate that it was shown: "
    "give it the CA of that one",
    "ALERT_PROTOCOL_VERSION": "the other side speaks no version of TLS that is allowed here",
}


def tls_error(error: BaseException | None) -> ssl.SSLError | None:
    """The error of TLS that `error` is, holds, or came of; None when it is of something else, also
    of a connection that ended."""
    for _ in range(8):
        if error is None:
            return None
        # aiohttp's are errors of TLS by name, and hold the one that knows what happened.
        held = getattr(error, "os_error", None) or getattr(error, "certificate_error", None)
        if isinstance(held, BaseException) and held is not error:
            error = held
        elif isinstance(error, ssl.SSLError):
            return None if isinstance(error, _ENDED) else error
        else:
            error = error.__cause__ or error.__context__
    return None


def why(error: BaseException | None) -> str:
    """What TLS did not like and what would be right; empty when `error` is no matter of TLS."""
    found = tls_error(error)
    if found is None:
        return ""
    if isinstance(found, ssl.SSLCertVerificationError):
        return _unbelieved(found)
    reason = found.reason or ""
    if reason in _NO_TLS:
        return "what it says is no TLS: is this a port without (http://)?"
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
        return f"its certificate is for other names ({said}): use a name or address that is in it"
    if code in _NO_CA:
        return (
            f"its certificate is of no CA that is believed here ({said}): name the CA that "
            "signed it (ca_file of a client, OCTAVO_TLS_CA, tls.ca)"
        )
    if code in _REVOKED:
        return "its certificate was revoked by its CA (tls.crl): it needs a new one"
    if code in _OLD_LIST:
        return (
            "the list of what its CA has revoked has ended, so nobody of that CA is believed here: "
            "put a newer one into tls.crl"
        )
    if code in _NO_LIST:
        return (
            "of its CA no list of what is revoked is known here, and tls.crl is set: put that "
            "CA's list into it, too"
        )
    if code in _BAD_LIST:
        return f"the list of what its CA has revoked (tls.crl) cannot be used: {said}"
    if code in _PURPOSE:
        return "its certificate is not for this: a server's for servers, a client's for clients"
    return f"its certificate is not believed: {said}"
