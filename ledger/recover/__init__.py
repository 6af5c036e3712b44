"""Closing a ledger that one does not own.

`recovery_state` is the pure state machine of the six steps, `recovery` drives it over real bookies
and the real record, `events` is what an observer sees of it.

Promises: the ledger ends behind every entry that was ever acknowledged, at one place, however many
recover it at once; from the fence on its writer is not acknowledged. A crash leaves the record
IN_RECOVERY and copies that nobody minds, and the next recovery begins anew. Relies on `write` for
its rules on ensembles, and on connections of its own. Others use `Recovery` and `RecoveryEvent`.
"""
