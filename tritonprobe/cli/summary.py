"""What a command's ledger directory has counted, in one sentence. Knows ledgers, not processes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tritonprobe.ledger import HistogramSample, Readable, Sample
from tritonprobe.ledger.schema import AFTER_READY, COLD_CALL_SECONDS, LAUNCHES
from tritonprobe.model import TIERS


@dataclass(frozen=True, slots=True)
class Counted:
    launches: int = 0
    seconds: float = 0.0
    calls: Counter[str] = field(default_factory=Counter)
    """Cold calls by tier."""
    incidents: Counter[str] = field(default_factory=Counter)
    """Those after ready."""

    @classmethod
    def by(cls, ledger: Readable) -> Counted:
        """All that `ledger` has counted."""
        launches, seconds = 0.0, 0.0
        calls: Counter[str] = Counter()
        incidents: Counter[str] = Counter()
        for family in ledger.collect():
            for sample in family.samples:
                if family.metric is LAUNCHES and isinstance(sample, Sample):
                    launches += sample.value
                elif family.metric is COLD_CALL_SECONDS and isinstance(sample, HistogramSample):
                    calls[sample.labels[0]] += int(sum(sample.counts))
                    seconds += sample.sum
                elif family.metric is AFTER_READY and isinstance(sample, Sample):
                    incidents[sample.labels[0]] += int(sample.value)
        return cls(int(launches), seconds, calls, incidents)

    def since(self, before: Counted) -> Counted:
        return Counted(
            self.launches - before.launches,
            self.seconds - before.seconds,
            _less(self.calls, before.calls),
            _less(self.incidents, before.incidents),
        )

    def __str__(self) -> str:
        if not (total := self.calls.total()):
            return f"{self.launches:,} launches, no cold calls"
        tiers = _tiers(self.calls)
        took = f"{self.seconds:,.2f} s" if self.seconds >= 1 else f"{self.seconds * 1e3:.1f} ms"
        late = self.incidents.total()
        after = f"; {late:,} of them after ready ({_tiers(self.incidents)})" if late else ""
        return f"{self.launches:,} launches, {total:,} cold call{'s' if total > 1 else ''} ({tiers}) of {took}{after}"


def _tiers(calls: Counter[str]) -> str:
    return ", ".join(f"{calls[tier]:,} {tier}" for tier in TIERS if calls[tier])


def _less(now: Counter[str], before: Counter[str]) -> Counter[str]:
    return Counter({tier: count - before[tier] for tier, count in now.items()})
