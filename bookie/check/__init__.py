"""Checks for damage: in a running bookie, at its start, and in the folders of a stopped bookie.

`scrub` reads logs again and again, `consistency` compares at a start.
Promises: the scrubber reads everything on disk in turn. A finding is reported once. No check
changes a file.
Relies on the formats.
After a crash the scrubber starts over.
Others use `Scrubber`, `check_at_start` and `check_folders`.
"""
