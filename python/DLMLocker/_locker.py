"""The client: one request per connection, repeated within the caller's retry budget."""

from __future__ import annotations

import json
import secrets
import socket
import threading
import time
from types import TracebackType
from typing import Any, Callable, NamedTuple, TypeVar, Union

from . import _wire

# More than the largest value a server takes can grow to when it is quoted and encoded again.
_MAX_ANSWER_BYTES = 64 * 1024 * 1024
_RECEIVE_BYTES = 256 * 1024

_Result = TypeVar("_Result")
_Seconds = Union[int, float, str]


class LockFailed(Exception):
    """A ``with`` block was not entered, since its lock could not be had."""


class Locker:
    """One requester's view of one name: its lock, and the data kept under it.

    A lock and a value belong to an ID, not to a thread or an object. Lockers that must exclude
    each other need different IDs (each makes its own when none is given); whoever calls Lock with
    the ID that holds the lock renews it. An instance may be used from several threads at once:
    they then share its ID and with it the lock, while Error is each thread's own.

    ``with locker:`` locks for 300 seconds, raises LockFailed if that fails, and unlocks at the
    end of the block. The lock is not renewed meanwhile: a block that may take longer calls
    Lock again in time.
    """

    VERSION: str = "0.0.0.1.580"
    """Version of the client library interface that this class provides."""

    ID: str
    """The unique identifier of this Locker."""

    def __init__(
        self,
        filename: str,
        Retry: int = 7,
        RetrySleep: float = 1,
        Timeout: float | None = 300,
        ID: str | None = None,
        Host: str = "",
        Port: int = 37373,
        Encoder: Callable[[Any], str] | None = None,
        Decoder: Callable[[str], str | bytes] | None = None,
        name: str | None = None,
        identity: str | None = None,
    ) -> None:
        """Prepare for `filename`, the resource's name; nothing is sent yet.

        A failed request is repeated `Retry` times at most, `RetrySleep` seconds apart. `Timeout`
        is the most seconds one connection may take in all (None: no limit). `Encoder` and
        `Decoder` replace how the content of a DataStore is written, never how requests are.
        `name` and `identity` authenticate every request.
        """
        self.filename = filename
        self.ID = secrets.token_urlsafe(37) if ID is None else ID
        self._retries = Retry
        self._retry_sleep_s = RetrySleep
        self._timeout_s = Timeout
        self._address = (Host or "127.0.0.1", Port)
        self._encoder = Encoder or _encode_content
        self._decoder = Decoder or _decode_content
        self._name = name
        self._identity = identity
        self._last = threading.local()

    @property
    def Error(self) -> str | None:
        """Why this thread's last call failed; None if it did not.

        An answer that Put, Get or Erase handed back is no failure, whatever its status.
        """
        error: str | None = getattr(self._last, "error", None)
        return error

    @Error.setter
    def Error(self, error: str | None) -> None:
        self._last.error = error

    def Lock(self, expire: _Seconds = 300) -> str:
        """Take or renew the lock for `expire` seconds: 'locked' or 'failure'.

        Tries again while another ID holds it.
        """
        request = self._request("Lock", expire)

        def attempt() -> str:
            answer = self._ask(request)
            if answer.status in _REFUSALS:
                raise _Refused(answer.status_as_sent)
            if answer.status != "locked":
                raise _Unsuccessful(answer.status_as_sent)
            _check_still_locked(answer, expire)
            return "locked"

        return self._repeat(attempt) or "failure"

    def IsLocked(self, expire: _Seconds = 300, acquire: bool = True) -> str | None:
        """Try once to take or renew the lock: 'locked', 'notowner', or None on failure.

        With acquire=False nothing is taken or renewed: 'locked' if this ID holds the lock,
        'notowner' if another does, 'unlocked' if nobody does.
        """
        request = self._request("Lock" if acquire else "TestLock", expire)

        def attempt() -> str:
            answer = self._ask(request)
            if answer.status == "locked" and acquire:
                _check_still_locked(answer, expire)
            if answer.status in ("locked", "notowner"):
                return answer.status
            if answer.status == "unlocked" and not acquire:
                return answer.status
            raise _Refused(answer.status_as_sent)

        return self._repeat(attempt, retries=0)

    def Unlock(self) -> str:
        """Release the lock: 'unlocked', also where nobody held it, or 'failure'."""
        request = self._request("Unlock", 0)

        def attempt() -> str:
            answer = self._ask(request)
            # Another's lock does not become ours by asking again.
            if answer.status == "notowner" or answer.status in _REFUSALS:
                raise _Refused(answer.status_as_sent)
            if answer.status != "unlocked":
                raise _Unsuccessful(answer.status_as_sent)
            return "unlocked"

        return self._repeat(attempt) or "failure"

    def Put(self, expire: _Seconds, data: Any) -> bytes | str:
        """Store `data` for `expire` seconds: the server's answer (JSON, as bytes) or 'failure'.

        Without an Encoder, data is a string, bytes, or a dict, which is stored as JSON.
        """
        return self._data_answer("Put", expire, self._encoder(data))

    def Get(self) -> dict[str, Any] | None:
        """The server's answer as a dict, its DataStore decoded; None on failure.

        Answers without a value (NotFound, NoData, NotOwner) are dicts without a DataStore.
        """
        request = self._request("Get", 0, DataStore=None)

        def attempt() -> dict[str, Any]:
            fields = self._ask(request).fields
            if "DataStore" in fields:
                fields["DataStore"] = self._decode(fields["DataStore"])
            return fields

        return self._repeat(attempt)

    def Erase(self) -> bytes | str:
        """Remove the stored data: the server's answer (JSON, as bytes) or 'failure'."""
        return self._data_answer("Erase", 0, None)

    def Version(self) -> str:
        """The server's version, a colon, this library's; 'Error' for a server that is not there."""
        request = self._request("Version", 0, DataStore=None)

        def attempt() -> str:
            answer = self._ask(request)
            server = answer.fields.get("ID")
            if answer.status != "version" or not isinstance(server, str):
                raise _Refused(answer.status_as_sent)
            return server

        return f"{self._repeat(attempt) or 'Error'}:{self.VERSION}"

    def IsDLM(self) -> bool:
        """Whether a server of this protocol answers."""
        return "JackrabbitDLM" in self.Version()

    def __enter__(self) -> Locker:
        if self.Lock() != "locked":
            raise LockFailed(f"{self.filename}: {self.Error}")
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # A failure is left in Error: the lock then ends by itself, and raising here would hide
        # what the block itself raised.
        self.Unlock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_last"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._last = threading.local()

    def _data_answer(self, action: str, expire: _Seconds, content: str | None) -> bytes | str:
        request = self._request(action, expire, DataStore=content)
        return self._repeat(lambda: self._ask(request).payload) or "failure"

    def _request(self, action: str, expire: _Seconds, **data: str | None) -> bytes:
        fields: dict[str, str | None] = {
            "ID": self.ID,
            "FileName": self.filename,
            "Action": action,
            "Expire": str(expire),
            **data,
        }
        # Only one of the two set: the other goes out as null, so that the server sees an
        # authentication that failed and not an anonymous request.
        if self._name or self._identity:
            fields["Name"] = self._name
            fields["Identity"] = self._identity
        return _wire.encode(json.dumps(fields).encode()) + b"\n"

    def _repeat(self, attempt: Callable[[], _Result], retries: int | None = None) -> _Result | None:
        """What `attempt` returns at last; None, with Error set, once the retries are used up."""
        retries_left = self._retries if retries is None else retries
        while True:
            try:
                result = attempt()
                self.Error = None
                return result
            except _Refused as refusal:
                self.Error = str(refusal)
                return None
            except _Unsuccessful as failure:
                self.Error = str(failure)
            if retries_left <= 0:
                return None
            retries_left -= 1
            time.sleep(self._retry_sleep_s)

    def _ask(self, request: bytes) -> _Answer:
        """One request over one connection."""
        try:
            line, sent_at_s = _exchange(self._address, request, self._timeout_s)
        except OSError as error:
            raise _Unsuccessful(str(error) or type(error).__name__) from error
        if not line:
            raise _Unsuccessful("the connection was closed without an answer")
        try:
            payload = _wire.decode(line).strip()
            fields = json.loads(payload)
        except (ValueError, RecursionError) as error:
            raise _Unsuccessful("the answer cannot be decoded") from error
        if not isinstance(fields, dict) or not isinstance(fields.get("Status"), str):
            raise _Unsuccessful("the answer has no status")
        return _Answer(payload, fields, sent_at_s)

    def _decode(self, content: Any) -> str:
        try:
            plain = self._decoder(content)
            return plain.decode() if isinstance(plain, bytes) else plain
        # The Decoder is the caller's: there is no telling what it raises for content that some
        # other Encoder wrote.
        except Exception as error:
            raise _Refused(f"the DataStore cannot be decoded: {error!r}") from error


class _Answer(NamedTuple):
    payload: bytes
    fields: dict[str, Any]
    sent_at_s: float

    @property
    def status_as_sent(self) -> str:
        status: str = self.fields["Status"]
        return status

    @property
    def status(self) -> str:
        return self.status_as_sent.lower()


class _Unsuccessful(Exception):
    """An attempt that failed and may be made again."""


class _Refused(Exception):
    """An attempt that would fail in the same way if it were made again."""


_REFUSALS = frozenset({"badpayload", "badaction"})


def _check_still_locked(answer: _Answer, expire: _Seconds) -> None:
    """A lock runs from some time after its request was sent; past that and `expire`, it may be
    another's by now."""
    try:
        ends_at_s = answer.sent_at_s + float(expire)
    except ValueError as error:
        raise _Refused(f"no number of seconds: {expire!r}") from error
    # Written so that a NaN fails as well.
    if not _now_s() < ends_at_s:
        raise _Unsuccessful("Locked, but the answer came after the lock's end")


def _exchange(
    address: tuple[str, int], request: bytes, timeout_s: float | None
) -> tuple[bytes, float]:
    """Send the request on a connection of its own: the answer's line, without the white space
    around it, and the time before the request's first byte was sent. The line is empty if the
    connection was closed without one.
    """
    deadline_s = None if timeout_s is None else _now_s() + timeout_s
    with socket.create_connection(address, timeout=timeout_s) as connection:
        sent_at_s = _now_s()
        connection.settimeout(_left_s(deadline_s))
        send_error: OSError | None = None
        try:
            connection.sendall(request)
        except ConnectionError as error:
            # A server that refuses a request half-way answers before it closes.
            send_error = error
        received = bytearray()
        try:
            while True:
                connection.settimeout(_left_s(deadline_s))
                piece = connection.recv(_RECEIVE_BYTES)
                received += piece
                if not piece or b"\n" in piece:
                    break
                if len(received) > _MAX_ANSWER_BYTES:
                    raise OSError("the answer does not end")
        except ConnectionError as error:
            raise send_error or error
        if send_error is not None and not received:
            raise send_error
    return bytes(received).partition(b"\n")[0].strip(), sent_at_s


def _left_s(deadline_s: float | None) -> float | None:
    if deadline_s is None:
        return None
    left_s = deadline_s - _now_s()
    if left_s <= 0:
        raise TimeoutError("timed out")
    return left_s


def _now_s() -> float:
    """A clock that never jumps and, where there is one, goes on while the machine sleeps: a lock
    ends at the server meanwhile."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


def _encode_content(data: Any) -> str:
    if isinstance(data, dict):
        data = json.dumps(data)
    if isinstance(data, str):
        data = data.encode()
    return _wire.encode(bytes(memoryview(data))).decode("ascii")


def _decode_content(content: str) -> bytes:
    return _wire.decode(content.encode("ascii"))
