"""Reference kernels for inference, each with a torch reference and an op that chooses between them.

The README beside this file gives every signature, shape and dtype.
"""

from tritonprobe_kernels.add import add, add_reference
from tritonprobe_kernels.attention_decode import attention_decode, attention_decode_reference
from tritonprobe_kernels.attention_prefill import attention_prefill, attention_prefill_reference
from tritonprobe_kernels.matmul import matmul, matmul_reference
from tritonprobe_kernels.rmsnorm import rmsnorm, rmsnorm_reference
from tritonprobe_kernels.rope import rope, rope_reference, rope_tables
from tritonprobe_kernels.softmax import softmax, softmax_reference
from tritonprobe_kernels.swiglu import swiglu, swiglu_reference

__all__ = [
    "add",
    "add_reference",
    "attention_decode",
    "attention_decode_reference",
    "attention_prefill",
    "attention_prefill_reference",
    "matmul",
    "matmul_reference",
    "rmsnorm",
    "rmsnorm_reference",
    "rope",
    "rope_reference",
    "rope_tables",
    "softmax",
    "softmax_reference",
    "swiglu",
    "swiglu_reference",
]
