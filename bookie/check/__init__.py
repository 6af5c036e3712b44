"""Checks for damage: in a running bookie, at its start, and in the folders of a stopped bookie.

`scrub` reads every log again and again, slowly. `consistency` compares index, logs and ledger state
at a start. `folder_check` checks the folders of a stopped bookie: logs, index, ledger state and
journals.

Promises: the scrubber reads everything on disk in turn. A finding is reported once, and cleared
when the damage is gone. No check changes a file. Relies on the formats and on the walk over a log;
findings go to the registry in `disk/damage.py`. After a crash the scrubber starts over. Others use
`Scrubber`, `check_at_start` and `check_folders`.
"""
