"""What a command's ledger directory has counted, in one sentence. Knows ledgers, not processes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tritonprobe.ledger import HistogramSample, Readable, Sample
from tritonprobe.ledger.schema import COLD_CALL_SECONDS, LAUNCHES
from tritonprobe.model import TIERS


@dataclass(frozen=True, slots=True)
class Counted:
    launches: int = 0
    seconds: float = 0.0
    calls: Counter[str] = field(default_factory=Counter)
    """Cold calls by tier."""

    @classmethod
    def by(cls, ledger: Readable) -> Counted:
        """All that `ledger` has counted."""
        launches, seconds = 0.0, 0.0
        calls: Counter[str] = Counter()
        for family in ledger.collect():
            for sample in family.samples:
                if family.metric is LAUNCHES and isinstance(sample, Sample):
                    launches += sample.value
                elif family.metric is COLD_CALL_SECONDS and isinstance(sample, HistogramSample):
                    calls[sample.labels[0]] += int(sum(sample.counts))
                    seconds += sample.sum
        return cls(int(launches), seconds, calls)

    def since(self, before: Counted) -> Counted:
        calls = Counter({tier: count - before.calls[tier] for tier, count in self.calls.items()})
        return Counted(self.launches - before.launches, self.seconds - before.seconds, calls)

    def __str__(self) -> str:
        if not (total := self.calls.total()):
            return f"{self.launches:,} launches, no cold calls"
        tiers = ", ".join(f"{self.calls[tier]:,} {tier}" for tier in TIERS if self.calls[tier])
        took = f"{self.seconds:,.2f} s" if self.seconds >= 1 else f"{self.seconds * 1e3:.1f} ms"
        return f"{self.launches:,} launches, {total:,} cold call{'s' if total > 1 else ''} ({tiers}) of {took}"
