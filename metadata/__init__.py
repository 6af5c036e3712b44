"""The few small records on which all agree: stores, sessions, and the records themselves."""
