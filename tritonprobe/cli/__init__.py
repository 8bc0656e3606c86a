"""The command line: `tritonprobe VERB`. One file a verb, loaded when the verb is used, so that help costs nothing.

Exit codes of every verb: 0, it did what was asked; 1, it ran and the result is bad; 2, the input cannot be used (one
line on standard error says what, where, and what would do); 130, stopped with Ctrl-C. `run` has its command's.
"""

from __future__ import annotations

import click

from tritonprobe.cli.group import Verb, VerbGroup, show_version

VERBS = (
    Verb("bench", "tritonprobe.cli.bench:bench", "Replay traces, make them up, and measure tritonprobe itself."),
    Verb("bundle", "tritonprobe.cli.bundle:bundle", "Carry what was compiled to other machines: pack, show, install."),
    Verb("census", "tritonprobe.cli.census:census", "Show, merge and compare what was recorded of launches."),
    Verb("demo", "tritonprobe.cli.demo:demo", "Serve, send traffic twice, and show what cold kernels cost."),
    Verb("off", "tritonprobe.cli.switching:off", "Take every patch back in a running program, and its children."),
    Verb("on", "tritonprobe.cli.switching:on", "Watch again what was switched off."),
    Verb("prewarm", "tritonprobe.cli.prewarm:prewarm", "Compile what a census recorded, before a server needs it."),
    Verb("ready", "tritonprobe.cli.ready:ready", "Ask whether a process takes traffic: an exec probe."),
    Verb("run", "tritonprobe.cli.run:run", "Run a command, count what Triton does in it, and serve the metrics."),
    Verb("serve", "tritonprobe.cli.serve:serve", "Serve the metrics of programs from their ledger directory."),
)

main = VerbGroup(
    "tritonprobe",
    verbs=VERBS,
    help="Which requests waited for a compile, a tuning or a cold cache, for which kernel, and why.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=show_version,
            help="Show the version.",
        )
    ],
)
