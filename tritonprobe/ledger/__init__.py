"""Where numbers are kept: one schema table, and stores behind one small interface.

`schema` has one row a metric; `store` is the interface; `memory` keeps one process's numbers, `file` keeps them where
other processes can read them (`directory`: where; `layout`: how; `region`: in whose memory), `merge` adds up all
processes of a directory and `fold` those that ended; `record` turns events into series; `derive` works out what no cell
counts. Nothing here knows Triton or Prometheus.
"""

from tritonprobe.ledger.file import FileLedger, open_ledger
from tritonprobe.ledger.memory import MemoryLedger
from tritonprobe.ledger.merge import DirectoryReader
from tritonprobe.ledger.record import Recorder
from tritonprobe.ledger.schema import METRICS, Metric
from tritonprobe.ledger.store import Cell, Exemplar, Family, HistogramSample, Ledger, Readable, Sample, Traced

__all__ = [
    "METRICS",
    "Cell",
    "DirectoryReader",
    "Exemplar",
    "Family",
    "FileLedger",
    "HistogramSample",
    "Ledger",
    "MemoryLedger",
    "Metric",
    "Readable",
    "Recorder",
    "Sample",
    "Traced",
    "open_ledger",
]
