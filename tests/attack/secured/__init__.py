"""Strangers against a secured cluster: part of `make attack`.

A client without any proof, `mallory` of another tenant, and `alice`, who has rights on one topic,
try every entrance of a cluster with TLS whose policy is secured. After each attempt: no attacker
was let in; the secret in `vault/secret` has not left the cluster; topics, cursors, rights and
ledgers are as they were; and the checks of tests/attack hold.
"""
