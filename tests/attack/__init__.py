"""Unruly clients against a real cluster: `make attack`, and a short form in every test run.

A standalone cluster of real processes is attacked in turn by every attempt in `attempts_*.py`,
while a well-behaved client publishes to a canary topic (canary.py). After each attempt, and while
it goes on: the canary's messages are there once, exactly and in order; it publishes at half its
rate or better; each process is alive, the same one, and within its bound of memory; no bad input
was answered 5xx; and a few seconds later all is as it was before.
"""
