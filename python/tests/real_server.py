"""The built server, started for a test.

LEASEHOLD_BIN names the binary; without it, target/release/leasehold or else
target/debug/leasehold of this checkout is taken. LEASEHOLD_BIN=none skips what needs it.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import socket
import subprocess
import tempfile
import threading
import unittest
from typing import Any

from checkout import CHECKOUT
from DLMLocker import _wire

_START_SECONDS = 60

needs_server = unittest.skipIf(
    os.environ.get("LEASEHOLD_BIN") == "none", "LEASEHOLD_BIN=none: no server to test against"
)


class RealServer:
    """A server of its own, on a free port, that has not seen any name.

    `config_dir` is where it looks for identities.
    """

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory()
        self.config_dir = pathlib.Path(self._directory.name)
        self._log = tempfile.TemporaryFile()
        try:
            command = [
                str(_binary()),
                "serve",
                "--listen=off",
                "--dlm-listen=127.0.0.1:0",
                "--admin-listen=off",
                "--state-dir=none",
                f"--dlm-config-dir={self.config_dir}",
            ]
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=self._log, text=True
            )
        except BaseException:
            self._close_files()
            raise
        try:
            self.port = self._wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> RealServer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def ask(self, request: Any) -> Any:
        """Sends the request as it is, and returns the answer, without any client library."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as connection:
            connection.sendall(_wire.encode(json.dumps(request).encode()) + b"\n")
            with connection.makefile("rb") as lines:
                answer = lines.read()
        if answer.count(b"\n") != 1 or not answer.endswith(b"\n"):
            raise AssertionError(f"not one line: {answer!r}")
        return json.loads(_wire.decode(answer[:-1]))

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._close_files()

    def _close_files(self) -> None:
        self._log.close()
        self._directory.cleanup()

    def _wait_until_ready(self) -> int:
        # Ends the wait for a server that neither gets ready nor exits.
        impatience = threading.Timer(_START_SECONDS, self._process.kill)
        impatience.start()
        try:
            assert self._process.stdout is not None
            line = self._process.stdout.readline()
        finally:
            impatience.cancel()
        ready = re.fullmatch(r"ready listen=off dlm=127\.0\.0\.1:(\d+) admin=off .*\n", line)
        if ready is None:
            self._process.kill()
            status = self._process.wait()
            self._log.seek(0)
            log = self._log.read().decode(errors="replace")
            raise AssertionError(
                f"the server said {line!r} and not that it is ready (status {status})\n{log}"
            )
        return int(ready[1])


def _binary() -> pathlib.Path:
    named = os.environ.get("LEASEHOLD_BIN")
    if named:
        candidates = [pathlib.Path(named)]
    else:
        candidates = [CHECKOUT / "target" / kind / "leasehold" for kind in ("release", "debug")]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    looked = " or ".join(map(str, candidates))
    raise AssertionError(
        f"no server at {looked}: build it, or set LEASEHOLD_BIN to it, or to none to leave out"
        " the tests against it"
    )
