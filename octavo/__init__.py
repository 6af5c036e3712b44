"""Octavo: a replicated ledger store with stateless topic brokers."""

__version__ = "0.1.0"
