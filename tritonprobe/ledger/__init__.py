"""Where numbers are kept: one schema table, and stores behind one small interface.

`schema` has one row a metric; `store` is the interface; `memory` keeps one process's numbers; `record` turns events
into series; `derive` works out what no cell counts. Nothing here knows Triton or Prometheus.
"""

from tritonprobe.ledger.memory import MemoryLedger
from tritonprobe.ledger.record import Recorder
from tritonprobe.ledger.schema import METRICS, Metric
from tritonprobe.ledger.store import Cell, Family, HistogramSample, Ledger, Sample

__all__ = ["METRICS", "Cell", "Family", "HistogramSample", "Ledger", "MemoryLedger", "Metric", "Recorder", "Sample"]
