"""What tritonprobe proves about itself: that cold calls are accounted for, and what a hot launch pays for it.

Each measurement runs in processes of its own (`processes`), is described by plain data (`cold`, `overhead`), and can be
written as one JSON document (`document`) with every raw value in it. `intervals` is the arithmetic.
"""
