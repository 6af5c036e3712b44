"""The ledger client: many bookies made one log."""
