"""Long-running processes: their spec, their life, and the mains of bookie and broker."""

from octavo.assertions import require_assertions

require_assertions()
