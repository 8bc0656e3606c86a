"""Settings come from code, then the environment; a value that cannot be used is named with what would do."""

from __future__ import annotations

import pytest

from tritonprobe.settings import SettingError, Settings


def test_defaults_need_no_thought() -> None:
    settings = Settings.from_env({})
    assert (settings.addr, settings.port, settings.disabled, settings.device) == ("127.0.0.1", 9464, False, None)


def test_the_environment_is_read() -> None:
    env = {"TRITONPROBE_PORT": "0", "TRITONPROBE_RANK": "3", "TRITONPROBE_DISABLED": "1", "TRITONPROBE_DEVICE": " x "}
    settings = Settings.from_env(env)
    assert (settings.port, settings.rank, settings.disabled, settings.device) == (0, "3", True, "x")


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
    ],
)
def test_a_value_that_cannot_be_used_is_named(variable: str, value: str, says: str) -> None:
    with pytest.raises(SettingError, match=says) as caught:
        Settings.from_env({variable: value})
    assert variable.removeprefix("TRITONPROBE_").lower() in str(caught.value).lower()


def test_code_wins() -> None:
    assert Settings.from_env({"TRITONPROBE_PORT": "1"}).with_(port=2).port == 2
