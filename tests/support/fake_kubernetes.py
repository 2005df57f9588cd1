"""As much of a Kubernetes API as Spark's driver uses, and of a machine that starts the pods it is asked for.

Pods become processes of the image's entry point on this machine, with the environment that their spec gives them. There
is no scheduler, no image and no container: what is shown is what Spark asks for, and that it works. Where bubblewrap is
installed, a pod's process has the root and the folders that its spec says: read-only, but for its emptyDirs.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pyspark

from confinement import confine
from oncehouse.devstack.subprocesses import signal_tree

Object = dict[str, Any]
HOME = "/home/oncehouse"
ENTRY_POINT = Path(__file__).parents[2] / "deploy" / "docker" / "entrypoint.sh"


class FakeKubernetes:
    """`objects`: what was made, by kind and name. `asked`: every request but reads."""

    def __init__(self, folder: Path) -> None:
        self.objects: dict[tuple[str, str], Object] = {}
        self.made: dict[tuple[str, str], Object] = {}
        self.asked: list[str] = []
        self.ended = threading.Event()
        self._folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def create(self, kind: str, made: Object) -> Object:
        name = made["metadata"]["name"]
        made["metadata"].setdefault("uid", f"uid-of-{name}")
        made["metadata"]["resourceVersion"] = str(len(self.made) + 1)
        self.objects[kind, name] = self.made[kind, name] = made
        if kind == "pods" and made["spec"].get("containers"):
            made["status"] = {"phase": "Running", "podIP": "127.0.0.1"}
            self._processes[name] = self._start(made)
        return made

    def delete(self, kind: str, names: list[str]) -> None:
        for name in names:
            self.objects.pop((kind, name), None)
            if process := self._processes.get(name):
                signal_tree(process.pid, signal.SIGKILL)

    def select(self, kind: str, selector: str) -> list[Object]:
        """By labels, of which Spark asks for equal ones only."""
        wanted = [pair.split("=") for pair in selector.split(",") if "=" in pair and "!=" not in pair]
        found = [made for (known, _), made in list(self.objects.items()) if known == kind]
        return [
            made
            for made in found
            if all(made["metadata"].get("labels", {}).get(name) == value for name, value in wanted)
        ]

    def _start(self, pod: Object) -> subprocess.Popen[bytes]:
        """As a machine would: the container's arguments for the image's entry point, and its environment alone."""
        (container,) = pod["spec"]["containers"]
        name = pod["metadata"]["name"]
        scratch = self._folder / name
        scratch.mkdir(parents=True)
        fields = {"status.podIP": "127.0.0.1", "metadata.name": name}
        told = {
            entry["name"]: entry["value"]
            if "value" in entry
            else fields[entry["valueFrom"]["fieldRef"]["fieldPath"]]
            for entry in container.get("env", ())
        }
        java = shutil.which("java")
        assert java is not None
        image = {
            "PATH": f"{Path(sys.executable).parent}:{Path(java).parent}:/usr/bin:/bin",
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        }
        confined = _confine(pod, scratch)
        if not confined:
            image["TMPDIR"] = str(scratch)
        with (self._folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [*confined, str(ENTRY_POINT), *container["args"]],
                env=image | told,
                cwd=scratch,
                stdout=log,
                stderr=log,
            )

    def end(self) -> None:
        self.ended.set()
        for process in self._processes.values():
            if process.poll() is None:
                signal_tree(process.pid, signal.SIGKILL)
            process.wait()


def _confine(pod: Object, scratch: Path) -> list[str]:
    """The words before a pod's command, for what its spec lets it write to."""
    (container,) = pod["spec"]["containers"]
    if shutil.which("bwrap") is None or not container.get("securityContext", {}).get(
        "readOnlyRootFilesystem"
    ):
        return []
    empty = {volume["name"] for volume in pod["spec"].get("volumes", ()) if "emptyDir" in volume}
    mounts = [mount for mount in container["volumeMounts"] if mount["name"] in empty]
    writable = {
        mount["mountPath"]: scratch / f"{place}-{mount['name']}" for place, mount in enumerate(mounts)
    }
    return confine(scratch, writable, home=HOME)


class _Api(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    kubernetes: FakeKubernetes

    def do_GET(self) -> None:
        kind, name, asked = self._place()
        if "watch" in asked and self.headers.get("Upgrade"):
            # With this the client asks again by plain HTTP, as it does behind proxies.
            self._answer(200, {})
        elif "watch" in asked:
            self._watch()
        elif name:
            found = self.kubernetes.objects.get((kind, name))
            self._answer(200, found) if found else self._answer(404, _status(404))
        else:
            items = self.kubernetes.select(kind, asked.get("labelSelector", ""))
            self._answer(200, {"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items})

    def do_POST(self) -> None:
        kind, _, _ = self._place()
        self._answer(201, self.kubernetes.create(kind, self._body()))

    def do_PATCH(self) -> None:
        kind, name, _ = self._place()
        self._body()
        self._answer(200, self.kubernetes.objects.get((kind, name), _status(404)))

    def do_DELETE(self) -> None:
        kind, name, asked = self._place()
        self._body()
        chosen = self.kubernetes.select(kind, asked.get("labelSelector", ""))
        self.kubernetes.delete(kind, [name] if name else [made["metadata"]["name"] for made in chosen])
        self._answer(200, _status(200))

    def _place(self) -> tuple[str, str, dict[str, str]]:
        """Kind, name and query of `/api/v1/namespaces/NAMESPACE/KIND/NAME?QUERY`."""
        split = urlsplit(self.path)
        parts = (*split.path.strip("/").split("/"), "", "", "", "", "", "")
        if self.command != "GET":
            self.kubernetes.asked.append(f"{self.command} {self.path}")
        return parts[4], parts[5], {name: values[0] for name, values in parse_qs(split.query).items()}

    def _body(self) -> Object:
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        read: Object = json.loads(raw) if raw else {}
        return read

    def _answer(self, code: int, told: Object) -> None:
        raw = json.dumps(told).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def _watch(self) -> None:
        """Nothing ever happens here: Spark also lists its pods from time to time."""
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.flush()
        self.kubernetes.ended.wait()
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Requests are in `asked`."""


def _status(code: int) -> Object:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "code": code,
        "status": "Success" if code < 400 else "Failure",
    }


@contextmanager
def fake_kubernetes(folder: Path) -> Iterator[tuple[FakeKubernetes, str]]:
    """The fake, and its address for `spark.master`."""
    kubernetes = FakeKubernetes(folder)
    api = type("Api", (_Api,), {"kubernetes": kubernetes})
    with ThreadingHTTPServer(("127.0.0.1", 0), api) as server:
        server.daemon_threads = True
        server.block_on_close = False
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield kubernetes, f"k8s://http://127.0.0.1:{server.server_port}"
        finally:
            kubernetes.end()
            server.shutdown()
            thread.join()
