"""Those who do not belong, against a secured cluster: part of `make attack`.

Somebody without any proof, `mallory` of another tenant and `alice`, who has rights on one topic,
try every door of a cluster with TLS whose policy says that it is secured. After each attempt: none
of them was let in, the secret that lies in `vault/secret` has left the cluster nowhere, topics,
cursors, rights and ledgers are as they were; and all that any attempt must leave alone
(tests/attack).
"""
