"""The process of the dev stack's S3 API: `python -m oncehouse.devstack.s3_server HOST PORT BUCKET`."""

from __future__ import annotations

import http.client
import signal
import sys
import threading


def serve(host: str, port: int, bucket: str) -> None:
    """Until a signal ends the process."""
    try:
        from moto.server import ThreadedMotoServer
    except ImportError:
        sys.exit("The S3 part needs moto: pip install 'oncehouse[dev-stack]'")
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    server = ThreadedMotoServer(ip_address=host, port=port, verbose=False)
    server.start()
    connection = http.client.HTTPConnection(host, port, timeout=30)
    connection.request("PUT", f"/{bucket}")
    connection.getresponse().read()
    connection.close()
    ended.wait()
    server.stop()


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), sys.argv[3])
