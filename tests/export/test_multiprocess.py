"""Inside and beside a program whose prometheus_client is in multi-process mode: both are right, nothing is doubled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.export.conftest import Prometheus
from tests.export.exporters import exporter, get, scrape, total, until

Start = Callable[[Sequence[str]], Prometheus]
ROOT = Path(__file__).parents[2]


class App:
    """The server of `forked_app`, its two directories, and which worker answered how often."""

    def __init__(self, where: str, place: Path) -> None:
        self.theirs, self.ours = place / "multiproc", place / "ledger"
        self.theirs.mkdir()
        self.env = {"PROMETHEUS_MULTIPROC_DIR": str(self.theirs), "TRITONPROBE_DIR": str(self.ours)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.export.forked_app", where],
            cwd=ROOT,
            env={**os.environ, **self.env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        self.answers: Counter[int] = Counter()

    def work(self) -> None:
        self.answers[int(get(f"{self.url}/work")[1])] += 1

    def work_on_both(self) -> None:
        """Works until each worker has done something."""

        def both() -> bool:
            self.work()
            return len(self.answers) == 2

        assert until(both)


@pytest.fixture
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    app = App(request.param, tmp_path)
    yield app
    app.process.communicate("")


@pytest.mark.parametrize("app", ["inside"], indirect=True)
def test_inside_every_worker_tells_of_all_and_each_number_once(app: App) -> None:
    app.work_on_both()
    expected = app.answers.total()
    for _ in range(10):  # whichever worker answers
        found = scrape(app.url)
        assert total(found, "app_requests_total") == expected
        assert total(found, "tritonprobe_launches_total", kernel="k") == expected
        assert {name for name, _ in found if name.startswith("app_")} == {"app_requests_total"}
    assert {path.suffix for path in app.theirs.iterdir()} == {".db"}
    assert {path.name.partition("_")[0] for path in app.theirs.iterdir()} == {"counter"}  # theirs alone


@pytest.mark.parametrize("app", ["inside"], indirect=True)
def test_inside_a_killed_worker_leaves_its_counts(app: App) -> None:
    app.work_on_both()
    os.kill(min(app.answers), signal.SIGKILL)
    for _ in range(3):
        found = scrape(app.url)
        assert total(found, "app_requests_total") == total(found, "tritonprobe_launches_total") == app.answers.total()


@pytest.mark.parametrize("app", ["beside"], indirect=True)
def test_beside_each_shows_its_own_and_a_prometheus_adds_nothing_twice(app: App, prometheus_server: Start) -> None:
    with exporter(app.ours, env=app.env) as up:
        app.work_on_both()
        expected = app.answers.total()
        theirs, ours = scrape(app.url), scrape(up.url)
        assert total(theirs, "app_requests_total") == expected
        assert not any(name.startswith("tritonprobe_") for name, _ in theirs)
        assert total(ours, "tritonprobe_launches_total") == expected
        assert all(name.startswith("tritonprobe_") for name, _ in ours)
        assert not list(app.theirs.glob(f"*{up.process.pid}*"))
        prometheus = prometheus_server([app.url, up.url])
        prometheus.wait_for("sum(app_requests_total)", {(): expected})
        prometheus.wait_for("sum(tritonprobe_launches_total)", {(): expected})
