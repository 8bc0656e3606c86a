"""What a document says of its making, and what it does not say."""

from __future__ import annotations

import sys
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tritonprobe.proving.document import command_line, described, document, pick_device
from tritonprobe.settings import SettingError


def test_a_command_line_spells_out_every_option_and_no_folder():
    options = {"--device": "auto", "--pairs": 200, "--json": True, "--quiet": False, "--output": Path("/a/b c/d.json")}
    assert command_line("bench overhead", options) == (
        "tritonprobe bench overhead --device auto --pairs 200 --json --output d.json"
    )
    assert command_line("bench cold", {"--output": None}) == "tritonprobe bench cold"


def test_what_is_not_installed_has_no_version(monkeypatch: pytest.MonkeyPatch):
    """What measures no launch needs neither Triton nor torch."""
    monkeypatch.setitem(sys.modules, "torch", None)
    made = described()
    assert set(made["versions"]) == {"tritonprobe", "triton", "python"}
    assert all(made["versions"].values())


def test_a_document_is_dated_in_utc():
    made = document("cold", "tritonprobe bench cold", {"versions": {}, "device": "none"}, {"rows": []})
    assert datetime.fromisoformat(made["date"]).utcoffset() == timedelta(0)
    assert made["rows"] == []


def test_a_compile_only_device_is_taken_as_it_is():
    assert pick_device("compile-only:cuda:80") == "compile-only:cuda:80"


@pytest.mark.parametrize("device", ["gpu", "compile-only", "compile-only:cuda:70", "cuda:90", ""])
def test_an_unknown_device_is_named_with_what_would_do(device):
    with pytest.raises(SettingError, match=f"^--device '{device}': expected auto, cuda or compile-only:cuda:90"):
        pick_device(device)


def test_without_a_gpu_auto_compiles_only_and_cuda_says_so(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device("auto") == "compile-only:cuda:90"
    with pytest.raises(SettingError, match="torch sees no CUDA device"):
        pick_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert pick_device("auto") is pick_device("cuda") is None
