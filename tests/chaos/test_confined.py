"""A whole pipeline under the restrictions of the systemd units: master, worker and driver, each in its own confinement.

The root is read-only, capabilities and most system calls are gone, and only the folders of the units are writable. What
stays untried is systemd itself.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pyspark
import pytest

from confinement import confine, filter_of, missing_programs, read_service
from live_pipeline import make_event, wait_until
from oncehouse.devstack.subprocesses import signal_tree
from secure_servers import free_ports

SYSTEMD = Path(__file__).parents[2] / "deploy" / "systemd"
SECRET = "5ecret" * 8
DRIVER_SETTINGS = {
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
}
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(bool(missing_programs()), reason=f"not installed: {', '.join(missing_programs())}"),
]


class Machine:
    """The folders of the units below one folder, with Spark and the script that starts it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state, self.cache, self.bin = folder / "state", folder / "cache", folder / "bin"
        for made in (self.state, self.cache, self.bin):
            made.mkdir()
        shutil.copy(SYSTEMD / "oncehouse-spark", self.bin)
        (self.bin / "spark-class").symlink_to(Path(pyspark.__file__).parent / "bin" / "spark-class")
        self.port, self.page, self.worker_page = free_ports(3)

    @contextmanager
    def start(self, name: str, words: list[str], secret: str = SECRET) -> Iterator[subprocess.Popen[bytes]]:
        """Confined as the unit says; with the block ends whatever is left of it."""
        unit = SYSTEMD / f"{name}.service"
        own = self.folder / f"of-{name}"
        secret_file = own / "spark.secret"
        writable = {"/tmp": own / "tmp", str(self.state): self.state, str(self.cache): self.cache}
        command = confine(own, writable, home=str(self.state))
        secret_file.write_text(secret)
        secret_file.chmod(0o600)
        # Below the folder for temporary files, which the unit has for itself.
        command += [
            "--ro-bind",
            str(secret_file),
            str(secret_file),
            "--ro-bind",
            str(self.bin),
            str(self.bin),
        ]
        seccomp = filter_of(unit)
        with self.log(name).open("ab") as log:
            process = subprocess.Popen(
                [*command, "--seccomp", str(seccomp), *words],
                env={
                    "PATH": os.environ["PATH"],
                    "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
                    "SPARK_HOME": str(Path(pyspark.__file__).parent),
                    "SPARK_SECRET_FILE": str(secret_file),
                    "SPARK_MASTER_WEBUI_PORT": str(self.page),
                    "SPARK_WORKER_WEBUI_PORT": str(self.worker_page),
                    "SPARK_WORKER_CORES": "2",
                    "SPARK_WORKER_MEMORY": "1g",
                }
                | ({"SPARK_LOCAL_IP": "127.0.0.1", "TMPDIR": str(self.cache)} if "worker" in name else {}),
                pass_fds=[seccomp],
                stdout=log,
                stderr=log,
            )
        os.close(seccomp)
        try:
            yield process
        finally:
            signal_tree(process.pid, signal.SIGKILL)
            process.wait()

    def spark_words(self, name: str) -> list[str]:
        """`ExecStart` of the unit, on this machine's folders and ports."""
        (start,) = read_service(SYSTEMD / f"{name}.service")["ExecStart"]
        for there, here in (
            ("/opt/oncehouse/bin", str(self.bin)),
            ("/var/lib/oncehouse", str(self.state)),
            ("${SPARK_MASTER_HOST}", "127.0.0.1"),
            ("7077", str(self.port)),
        ):
            start = start.replace(there, here)
        return start.split()

    def page_answers(self) -> bool:
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{self.page}/json/", timeout=5):
            return True
        return False

    def workers(self) -> list[dict[str, Any]]:
        """Those that the master has let in."""
        with (
            suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{self.page}/json/", timeout=5) as page,
        ):
            found: list[dict[str, Any]] = json.load(page)["workers"]
            return found
        return []

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"


@pytest.fixture
def machine(tmp_path) -> Machine:
    return Machine(tmp_path)


def test_a_pipeline_runs_on_a_cluster_under_the_restrictions_of_the_units(make_pipeline, machine, tmp_path):
    live_pipeline = make_pipeline(
        partitions=2,
        ledger={
            "catalog": f"sqlite:///{machine.state}/catalog.db",
            "files": str(machine.state / "files"),
        },
        spark={
            "master": f"spark://127.0.0.1:{machine.port}",
            "settings": DRIVER_SETTINGS | {"spark.authenticate.secret": "${env:SPARK_SECRET}"},
        },
    )
    live_pipeline.send([make_event(number) for number in range(120)])
    live_pipeline.send([make_event(number) for number in range(60, 120)], partition=1)
    driver = [*live_pipeline.command_line("run", "--once")]
    file = machine.state / "pipeline.yaml"
    file.write_text(Path(driver[-1]).read_text().replace("${env:SPARK_SECRET}", SECRET))
    with ExitStack() as running:
        for name in ("oncehouse-spark-master", "oncehouse-spark-worker"):
            running.enter_context(machine.start(name, machine.spark_words(name)))
            wait_until(machine.page_answers, "the master to answer")
        wait_until(machine.workers, "the worker to be let in")
        run = running.enter_context(machine.start("oncehouse@", [*driver[:-1], str(file)]))
        lines = set()
        while run.poll() is None:
            lines |= command_lines()
        log = machine.log("oncehouse@").read_text()
        assert run.returncode == 0, log[-3000:]
    assert any("CoarseGrainedExecutorBackend" in line for line in lines)
    assert not [line for line in lines if SECRET in line]
    live_pipeline.assert_exact()


def test_a_worker_with_another_secret_is_not_let_in(machine):
    master, worker = "oncehouse-spark-master", "oncehouse-spark-worker"
    with machine.start(master, machine.spark_words(master)):
        wait_until(machine.page_answers, "the master to start")
        with machine.start(worker, machine.spark_words(worker), secret="another" * 8):
            wait_until(
                lambda: "Failed to connect to master" in machine.log(worker).read_text(), "the refusal"
            )
            assert not machine.workers()
        with machine.start(worker, machine.spark_words(worker)):
            wait_until(machine.workers, "the worker with the right secret")


def command_lines() -> set[str]:
    found = set()
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.add(file.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return found
