"""The only room that knows Triton: reversible patches, the counting binder, cold calls and their phases.

Start at `adapter.core`. Each module's first lines say which part of Triton it touches. Versions of Triton from 3.6 on
are taken as they are found: every rewrite checks itself against the function it changes and falls back to a plainer
way.
"""
