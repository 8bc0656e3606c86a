"""The board's row on GPU time: which kernels have it, how long they wait for it, and how it was measured."""

from __future__ import annotations

from grafana.panels import Panel, Target, bars, coloured, lines, override, table
from grafana.queries import INTERVAL, RANGE, counted, quantile, rate, ratio, series, total
from grafana.serving import only_this_kernel
from tritonprobe.ledger import schema

PAIR = ("kernel", "bucket")
SAMPLED = "Of what windows saw: a sample of the program's launches, not all of them."


def gpu_time() -> list[Panel]:
    """GPU time by kernel and bucket, as sampled in windows."""
    time, count = (counted(schema.KERNEL_BUCKET_SECONDS, PAIR, window=RANGE, part=part) for part in ("sum", "count"))
    whole = counted(schema.KERNEL_BUCKET_SECONDS, (), window=RANGE, part="sum")
    mean = ratio(
        rate(schema.KERNEL_BUCKET_SECONDS, PAIR, part="sum"), rate(schema.KERNEL_BUCKET_SECONDS, PAIR, part="count")
    )
    return [
        table(
            "GPU time by kernel and bucket",
            f"{SAMPLED} Replayed graphs included; `external` are kernels that others launched, by their own names.",
            Target(f"{time} / on () group_left () ({whole} > 0)", "share of GPU time"),
            Target(ratio(time, count), "mean"),
            Target(count, "sampled"),
            labels={label: label for label in PAIR},
            unit="s",
            empty="no window yet",
            size=(12, 9),
            overrides=[
                override("kernel", links=[only_this_kernel()]),
                override("share of GPU time", unit="percentunit", decimals=1),
                override("sampled", unit="short", decimals=0),
            ],
        ),
        lines(
            "Mean GPU time of a kernel",
            "The ten kernels and buckets with the most GPU time. A step in a line is a kernel that became slower.",
            Target(
                f"{mean} and topk by () (10, {rate(schema.KERNEL_BUCKET_SECONDS, PAIR, part='sum')})",
                "{{kernel}} {{bucket}}",
            ),
            unit="s",
            empty="no window yet",
            legend="right",
            size=(12, 9),
        ),
        lines(
            "GPU time of the top kernels, P50 and P99",
            "Kernels and buckets with the most GPU time, which have a histogram.",
            Target(quantile(0.5, schema.KERNEL_SECONDS, window=INTERVAL, by=PAIR), "P50 {{kernel}} {{bucket}}"),
            Target(quantile(0.99, schema.KERNEL_SECONDS, window=INTERVAL, by=PAIR), "P99 {{kernel}} {{bucket}}"),
            unit="s",
            empty="no window yet",
            legend="right",
            size=(12, 8),
        ),
        lines(
            "Waiting for the GPU",
            "From the launcher's return to the kernel's start, P50 and P99. Microseconds: the host is the bottleneck; "
            "much more: the GPU is.",
            Target(quantile(0.5, schema.QUEUE_SECONDS, window=INTERVAL), "P50"),
            Target(quantile(0.99, schema.QUEUE_SECONDS, window=INTERVAL), "P99"),
            unit="s",
            empty="no window yet",
            size=(6, 8),
        ),
        lines(
            "GPU busy",
            "Share of the windows' time in which a kernel ran.",
            Target(ratio(rate(schema.GPU_BUSY, ("gpu",)), rate(schema.GPU_WATCHED, ("gpu",))), "GPU {{gpu}}"),
            unit="percentunit",
            empty="no window yet",
            size=(6, 8),
        ),
        bars(
            "Windows by outcome",
            "Windows in which GPU time was looked at. Those that are not ok were given up rather than guessed.",
            Target(f"{counted(schema.GPU_WINDOWS, ('outcome',), window=INTERVAL)} > 0", "{{outcome}}"),
            unit="short",
            empty="none",
            size=(6, 8),
            overrides=coloured({"ok": "green", "idle": "blue"}),
        ),
        lines(
            "Launches sampled",
            "Launches with their GPU time, of all launches; and those seen in windows that were given up, of all seen.",
            Target(ratio(rate(schema.GPU_LAUNCHES, (), 'attribution="matched"'), rate(schema.LAUNCHES, ())), "sampled"),
            Target(
                ratio(rate(schema.GPU_LAUNCHES, (), 'attribution!="matched"'), rate(schema.GPU_LAUNCHES, ())),
                "given up",
            ),
            unit="percentunit",
            empty="no window yet",
            size=(6, 8),
        ),
        lines(
            "What measuring costs",
            "tritonprobe's own time, as far as it can tell itself, as a share of the process's; windows stay below "
            "0.5%.",
            Target(
                total(schema.SELF_SECONDS, ("part",), f"rate({series(schema.SELF_SECONDS)}[{INTERVAL}])"), "{{part}}"
            ),
            unit="percentunit",
            empty="nothing yet",
            size=(6, 8),
        ),
        table(
            "How GPU time is measured",
            "Processes by method. `cupti`: by the kernels' own records; `event`: an upper bound for short kernels; "
            "`none`: the reason says why. Nothing stands here where TRITONPROBE_GPU_WINDOWS is not set.",
            Target(total(schema.GPU_TIMING, ("method", "why"), series(schema.GPU_TIMING), "count"), "processes"),
            labels={"method": "method", "why": "why"},
            unit="short",
            empty="-",
            size=(6, 8),
        ),
    ]
