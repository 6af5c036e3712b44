"""Reads a bookie's files for people: what `octavo inspect` shows. Never writes, never trusts."""
