"""Settings come from code, then the environment; a value that cannot be used is named with what would do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tritonprobe import settings
from tritonprobe.settings import SettingError, Settings


def test_defaults_need_no_thought() -> None:
    settings = Settings.from_env({})
    assert (settings.addr, settings.port, settings.disabled, settings.device) == ("127.0.0.1", 9464, False, None)


def test_the_environment_is_read() -> None:
    env = {"TRITONPROBE_PORT": "0", "TRITONPROBE_RANK": "3", "TRITONPROBE_DISABLED": "1", "TRITONPROBE_ADDR": " ::1 "}
    settings = Settings.from_env(env)
    assert (settings.port, settings.rank, settings.disabled, settings.addr) == (0, "3", True, "::1")


def test_the_rank_of_a_launcher_is_taken_where_none_is_set() -> None:
    assert Settings.from_env({"RANK": "5"}).rank == "5"
    assert Settings.from_env({"RANK": "5", "TRITONPROBE_RANK": "2"}).rank == "2"


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("TRITONPROBE_PORT", "http", "expected a whole number"),
        ("TRITONPROBE_PORT", "70000", "expected a whole number from 0 to 65535"),
        ("TRITONPROBE_SERIES_BUDGET", "-1", "from 100 to"),
        ("TRITONPROBE_DISABLED", "maybe", "expected 1 or 0"),
        ("TRITONPROBE_HOST_WINDOWS", "nan", "expected seconds, from 0"),
        ("TRITONPROBE_HOST_WINDOWS", "often", "expected seconds, from 0"),
        ("TRITONPROBE_DEVICE", "cuda:90", "expected compile-only:cuda:90"),
    ],
)
def test_a_value_that_cannot_be_used_is_named(variable: str, value: str, says: str) -> None:
    with pytest.raises(SettingError, match=says) as caught:
        Settings.from_env({variable: value})
    assert str(caught.value).startswith(f"{variable}=")


def test_a_misspelt_variable_is_told_of_once_with_the_name_that_is_meant(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(settings, "_told", set())
    env = {"TRITONPROBE_DISBALED": "1", "TRITONPROBE_PORT": "1", "TRITONPROBE_SERVICE_HOST": "10.0.0.1", "HISTORY": "1"}
    for _ in range(2):
        assert not Settings.from_env(env).disabled
    says = "tritonprobe: TRITONPROBE_DISBALED is no setting, and has no effect: is TRITONPROBE_DISABLED meant?"
    assert caplog.messages == [says]


def test_of_many_misspelt_variables_a_few_are_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(settings, "_told", set())
    for letter in range(100):
        Settings.from_env({f"TRITONPROBE_PORT{letter}{more}": "1" for more in range(3)})
    assert len(caplog.messages) == settings.MAX_TOLD


def test_code_wins() -> None:
    assert Settings.from_env({"TRITONPROBE_PORT": "1"}).with_(port=2).port == 2


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("host_windows", "x", "expected seconds, from 0"),
        ("host_windows", float("nan"), "expected seconds, from 0"),
        ("host_windows", True, "expected seconds, from 0"),
        ("dir", 5, "expected a directory's path, or none"),
        ("dir", "a\0b", "expected a directory's path, or none"),
        ("port", True, "expected a whole number from 0 to 65535"),
        ("series_budget", "100", "expected a whole number from 100"),
        ("addr", 5, "expected text, such as '127.0.0.1'"),
        ("addr", "", "expected text, such as '127.0.0.1'"),
        ("rank", 0, "expected text, such as '0'"),
        ("disabled", 1, "expected True or False"),
        ("device", "bad", "expected compile-only:cuda:90"),
        ("device", 90, "expected compile-only:cuda:90"),
    ],
)
def test_a_wrong_value_in_code_is_named_in_one_sentence(name: str, value: object, says: str) -> None:
    with pytest.raises(SettingError) as caught:
        Settings().with_(**{name: value})
    assert str(caught.value).startswith(f"{name}={value!r}: {says}")


@pytest.mark.parametrize(
    ("name", "value"),
    [("host_windows", 0), ("dir", None), ("device", None), ("device", "compile-only:cuda:80"), ("rank", "3")],
)
def test_what_can_be_used_is_taken(name: str, value: object) -> None:
    assert getattr(Settings().with_(**{name: value}), name) == value


def test_a_path_is_a_directorys_name_too(tmp_path: Path) -> None:
    assert Settings().with_(dir=tmp_path).dir == str(tmp_path)
