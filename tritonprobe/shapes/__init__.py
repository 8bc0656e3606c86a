"""Shapes: what traffic looks like to a kernel, in names that are the same on every pod.

`buckets` names ranges of launch shapes, `reasons` says what made a variant new, `advice` what to do about it. Pure: no
Triton, no tensors, no clock.
"""
