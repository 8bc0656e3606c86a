"""Why a variant was compiled, or read again: from the variants before it, and from the keys that the cache knew.

A fault in here costs a reason, never a launch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tritonprobe.adapter import diskkey
from tritonprobe.adapter.calls import OpenCall
from tritonprobe.adapter.variants import variant_of
from tritonprobe.model import Variant
from tritonprobe.shapes.reasons import VariantMemory


class Explanations:
    """Those of one process."""

    def __init__(self, fault: Callable[[str], None]) -> None:
        self._fault = fault
        self._memory = VariantMemory()

    def explain(
        self, call: OpenCall, name: str, jit: Any, signature: Any, constexprs: Any, attrs: Any, options: Any
    ) -> Variant | None:
        """Notes in `call` in what a variant differs from those before it."""
        try:
            variant = variant_of(name, jit, signature, constexprs, attrs, options)
            lines = self._memory.explain(variant)
            if call.variant is None:  # an autotuned call makes many; the first says why the call was cold
                call.variant = variant
                call.reasons = (*call.reasons, *lines)
            return variant
        except Exception:
            self._fault("reasons")
            return None

    def raised(self, variant: Variant) -> None:
        """The compile of `variant`, which was explained, raised."""
        try:
            self._memory.raised(variant)
        except Exception:
            self._fault("reasons")

    def explain_disk(self, call: OpenCall, variant: Variant) -> None:
        """A compile of a variant that this cache had before: which part of its key changed."""
        try:
            folder = diskkey.cache_folder()
            if folder is None or call.key_parts is None:
                return
            if variant is call.variant:
                call.reasons = (*call.reasons, *diskkey.why_not_on_disk(folder, variant, call.key_parts))
            diskkey.remember(folder, variant, call.key_parts)
        except Exception:
            self._fault("diskkey")

    def note_parts(self, call: OpenCall, source: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Takes the parts of a cache key that is being made."""
        if not hasattr(source, "fn"):
            return
        try:
            backend, options, *rest = args
            call.key_parts = diskkey.parts_of(source, backend, options, rest[0] if rest else kwargs["env_vars"])
        except Exception:
            self._fault("diskkey")
