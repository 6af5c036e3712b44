"""All models, by name."""

from __future__ import annotations

from tests.model import (
    m1_fencing,
    m2_ensemble_change,
    m3_two_recoverers,
    m4_two_entries,
    m5_striping,
    m6_crash,
    m7_chain,
    m8_claims,
)
from tests.model.model import Model

MODELS: dict[str, Model] = {
    model.name: model
    for model in (
        m1_fencing.MODEL,
        m2_ensemble_change.MODEL,
        m3_two_recoverers.SMALL,
        m3_two_recoverers.MODEL,
        m4_two_entries.MODEL,
        m4_two_entries.PIPELINED,
        m5_striping.MODEL,
        m5_striping.ONE_ACK,
        m5_striping.CHANGING,
        m6_crash.SMALL,
        m6_crash.MODEL,
        m7_chain.ROLLS,
        m7_chain.LOST,
        m7_chain.THREE,
        m8_claims.MODEL,
        m8_claims.SESSIONS,
        m8_claims.BOTH,
    )
}
