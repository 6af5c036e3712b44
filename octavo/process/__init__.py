"""Long-running processes: what one is told, how it lives and ends; bookie and broker as mains."""

from octavo.assertions import require_assertions

require_assertions()
