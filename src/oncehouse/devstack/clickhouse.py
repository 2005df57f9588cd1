"""A ClickHouse server: the `clickhouse` binary when one is on PATH, else the engine of the chdb-core wheel.

Both read the same settings. The wheel's engine runs in a process of its own (`clickhouse_server.py`) and
takes its settings from a home folder of its own.
"""

from __future__ import annotations

import http.client
import importlib.util
import shutil
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from xml.sax.saxutils import escape

from oncehouse.devstack.server_base import LOCALHOST, Launch, ServerPlace
from oncehouse.errors import ConfigurationError

_SERVER = Path(__file__).resolve().with_name("clickhouse_server.py")

_SETTINGS = """\
<clickhouse>
  <listen_host>{host}</listen_host>
  <http_port>{http}</http_port>
  <tcp_port>{tcp}</tcp_port>
  <path>{data}/</path>
  <tmp_path>{data}/tmp/</tmp_path>
  <logger><level>information</level><log>{log}</log><errorlog>{error_log}</errorlog><size>20M</size><count>2</count></logger>
  <query_log>
    <database>system</database><table>query_log</table>
    <flush_interval_milliseconds>500</flush_interval_milliseconds>
  </query_log>
  <user_directories><users_xml><path>{settings}</path></users_xml></user_directories>
  <profiles><default/></profiles>
  <quotas><default/></quotas>
  <users>
    <default>
      <password/><networks><ip>{host}</ip></networks><profile>default</profile><quota>default</quota>
      <access_management>1</access_management>
    </default>
  </users>
{keeper}</clickhouse>
"""
_KEEPER = """\
  <zookeeper><node><host>{host}</host><port>{port}</port></node></zookeeper>
  <keeper_map_path_prefix>/keeper_map</keeper_map_path_prefix>
"""


@dataclass(frozen=True, kw_only=True)
class ClickHouseServer:
    place: ServerPlace

    name: ClassVar[str] = "clickhouse"
    port_names: ClassVar[tuple[str, ...]] = ("http", "tcp")
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    ready_within_seconds: ClassVar[float] = 60

    @property
    def url(self) -> str:
        return f"http://{LOCALHOST}:{self.place.ports['http']}"

    @property
    def address(self) -> str:
        return self.url

    def prepare(self) -> None:
        if shutil.which("clickhouse") is None and importlib.util.find_spec("chdb") is None:
            raise ConfigurationError(
                "There is no ClickHouse here. Run `pip install 'oncehouse[dev-stack]'`, "
                "or put a `clickhouse` binary on PATH."
            )
        (self._data / "tmp").mkdir(parents=True, exist_ok=True)

    def launch(self) -> Launch:
        binary = shutil.which("clickhouse")
        if binary is not None:
            settings = self.place.folder / "config.xml"
            command = (binary, "server", f"--config-file={settings}")
            return Launch(command=command, files={settings: self._settings(settings)})
        home = self.place.folder / "home"
        settings = home / ".clickhouse-local" / "config.xml"
        return Launch(
            # By path, and with -P so that no neighbour module shadows a library: the engine's process must
            # load nothing else of this package, least of all another copy of Arrow.
            command=(sys.executable, "-P", str(_SERVER), str(self._data)),
            files={settings: self._settings(settings)},
            environment={"HOME": str(home)},
        )

    def is_ready(self) -> bool:
        connection = http.client.HTTPConnection(LOCALHOST, self.place.ports["http"], timeout=2)
        try:
            connection.request("GET", "/?query=SELECT%201")
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    @property
    def _data(self) -> Path:
        return self.place.folder / "data"

    def _settings(self, settings: Path) -> str:
        zookeeper = self.place.neighbours.get("zookeeper")
        return _SETTINGS.format(
            host=LOCALHOST,
            http=self.place.ports["http"],
            tcp=self.place.ports["tcp"],
            data=escape(str(self._data)),
            log=escape(str(self.place.folder / "server.log")),
            error_log=escape(str(self.place.folder / "server-errors.log")),
            settings=escape(str(settings)),
            keeper=_KEEPER.format(host=LOCALHOST, port=zookeeper["client"]) if zookeeper else "",
        )
