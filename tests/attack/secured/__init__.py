"""Strangers against a secured cluster: part of `make attack`. A client without proof, `mallory`
of another tenant, and `alice` with rights on one topic try every entrance. After each attempt no
attacker was let in, the secret in `vault/secret` has not left the cluster, nothing has changed,
and the checks of tests/attack hold."""
