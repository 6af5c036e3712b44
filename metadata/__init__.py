"""The few small records that all processes share: stores, sessions, and the records themselves."""
