"""The command line as a whole: help that costs nothing, and one line for what cannot be used."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from importlib.util import find_spec

import pytest
from click.testing import CliRunner

from tritonprobe.cli import VERBS, main


def test_help_lists_every_verb_and_loads_none():
    code = (
        "import sys, json\n"
        "from tritonprobe.cli import main\n"
        "main(['--help'], standalone_mode=False)\n"
        "print(json.dumps(sorted(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for verb in VERBS:
        assert f"  {verb.name} " in done.stdout
        assert verb.help in done.stdout
    loaded = set(json.loads(done.stderr.splitlines()[-1]))
    assert "tritonprobe.cli.group" in loaded
    assert not loaded & {
        "torch",
        "triton",
        "httpx",
        "rich",
        "prometheus_client",
        *(v.place.split(":")[0] for v in VERBS),
    }


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_no_line_of_a_help_is_cut(verb):
    done = CliRunner().invoke(main, [verb.name, "--help"])
    _usage, *rest = done.stdout.splitlines()
    assert (done.exit_code, [line for line in rest if line.endswith("...")]) == (0, [])


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_every_verb_is_where_the_table_says(verb):
    if find_spec(verb.place.split(":")[0]) is None:
        pytest.fail(f"{verb.place} does not exist")
    assert verb.load().name == verb.name


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nope"], "No such command 'nope'."),
        (["--nope"], "No such option"),
        (["bench", "nope"], "No such command 'nope'."),
        (["bench", "serve"], "Missing argument 'TRACE'."),
        (["bench", "serve", "x"], "Missing option '--url'."),
        (["bench", "trace", "--requests", "many"], "Invalid value for '--requests'"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(arguments, said):
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert said in done.stderr


INTERRUPTS = """
import os, signal, sys

class CtrlC:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, CtrlC())
from tritonprobe.cli import main
main(sys.argv[2:])
"""


@pytest.mark.parametrize(
    ("importing", "arguments"),
    [
        *((verb.place.split(":")[0], [verb.name]) for verb in VERBS),
        ("tritonprobe.proving.scrape", ["bench", "scrape"]),
        ("tritonprobe.prewarming.bundle", ["bundle", "pack", "-o", "never"]),
    ],
)
def test_ctrl_c_while_a_verb_starts_is_quiet_and_exit_code_130(importing, arguments, tmp_path):
    command = [sys.executable, "-c", INTERRUPTS, importing, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_no_verb_prints_the_help():
    for arguments in ([], ["bench"]):
        assert "Commands:" in CliRunner().invoke(main, arguments).output


def test_version():
    try:
        expected = (0, f"tritonprobe {metadata.version('tritonprobe')}\n")
    except metadata.PackageNotFoundError:
        expected = (2, "")
    done = CliRunner().invoke(main, ["--version"])
    assert (done.exit_code, done.stdout) == expected
