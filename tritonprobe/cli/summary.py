"""What a command's ledger directory has counted, in one sentence. Knows ledgers, not processes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tritonprobe.ledger import HistogramSample, Readable, Sample
from tritonprobe.ledger.schema import AFTER_READY, BEFORE_READY, COLD_CALL_SECONDS, LAUNCHES, PREWARMS
from tritonprobe.model import TIERS
from tritonprobe.wording import counted


@dataclass(frozen=True, slots=True)
class Counted:
    launches: int = 0
    seconds: float = 0.0
    calls: Counter[str] = field(default_factory=Counter)
    """Cold calls by tier."""
    incidents: Counter[str] = field(default_factory=Counter)
    """Those of serving threads after ready."""
    before: Counter[str] = field(default_factory=Counter)
    """Cold calls before ready: in a prewarm, and others."""
    prewarms: Counter[str] = field(default_factory=Counter)
    """What came of the census, by process that called ready."""

    @classmethod
    def by(cls, ledger: Readable) -> Counted:
        """All that `ledger` has counted."""
        launches, seconds = 0.0, 0.0
        calls: Counter[str] = Counter()
        incidents: Counter[str] = Counter()
        before: Counter[str] = Counter()
        prewarms: Counter[str] = Counter()
        by_first_label = {AFTER_READY: incidents, BEFORE_READY: before, PREWARMS: prewarms}
        for family in ledger.collect():
            for sample in family.samples:
                if family.metric is LAUNCHES and isinstance(sample, Sample):
                    launches += sample.value
                elif family.metric is COLD_CALL_SECONDS and isinstance(sample, HistogramSample):
                    calls[sample.labels[0]] += int(sum(sample.counts))
                    seconds += sample.sum
                elif family.metric in by_first_label and isinstance(sample, Sample):
                    by_first_label[family.metric][sample.labels[0]] += int(sample.value)
        return cls(int(launches), seconds, calls, incidents, before, prewarms)

    def since(self, before: Counted) -> Counted:
        return Counted(
            self.launches - before.launches,
            self.seconds - before.seconds,
            _less(self.calls, before.calls),
            _less(self.incidents, before.incidents),
            _less(self.before, before.before),
            _less(self.prewarms, before.prewarms),
        )

    def __str__(self) -> str:
        if not (total := self.calls.total()):
            return f"{counted(self.launches, 'launch')}, no cold calls"
        tiers = _tiers(self.calls)
        took = f"{self.seconds:,.2f} s" if self.seconds >= 1 else f"{self.seconds * 1e3:.1f} ms"
        calls = f"{counted(total, 'cold call')} ({tiers}) of {took}"
        return f"{counted(self.launches, 'launch')}, {calls}{self._when(total)}"

    def replays(self) -> int:
        """How many processes replayed the census, to its end or not."""
        return self.prewarms["done"] + self.prewarms["stopped"]

    def _when(self, total: int) -> str:
        """How many of the calls came before ready and how many after; without a prewarm only those after are told."""
        late, prewarmed = self.incidents.total(), self.before["prewarm"]
        parts: list[tuple[int, str]] = []
        if self.replays() or prewarmed:
            background = total - self.before.total() - late
            parts += [(prewarmed, "in the prewarm"), (self.before["start"], "before ready")]
            parts += [(background, "in the background after ready")]
        parts.append((late, f"after ready ({_tiers(self.incidents)})"))
        told = [(f"{count:,}", when) for count, when in parts if count]
        if not told:
            return ""
        if self.replays() and not late:
            told.append(("none", "after ready"))
        (many, when), *others = told
        return ", ".join([f"; {many} of them {when}", *(" ".join(other) for other in others)])


def _tiers(calls: Counter[str]) -> str:
    return ", ".join(f"{calls[tier]:,} {tier}" for tier in TIERS if calls[tier])


def _less(now: Counter[str], before: Counter[str]) -> Counter[str]:
    return Counter({tier: count - before[tier] for tier, count in now.items()})
