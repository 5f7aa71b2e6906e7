"""The client against a scripted server: what it sends, and what it makes of what comes back."""

from __future__ import annotations

import copy
import json
import pickle
import socket
import threading
import unittest
from typing import Any, Callable
from unittest import mock

import checkout  # noqa: F401
from scripted_server import (
    ScriptedServer,
    answer,
    encoded,
    hang_up,
    reset,
    say_nothing,
    send,
)
from DLMLocker import Locker, LockFailed, _wire

LOCKED = answer("Locked", ID="A")
NOT_OWNER = answer("NotOwner")


class Case(unittest.TestCase):
    """Serves the turns given to `serve` and keeps the client's sleeps, which take no time."""

    def setUp(self) -> None:
        self.slept: list[float] = []
        patch = mock.patch("DLMLocker._locker.time.sleep", self.slept.append)
        patch.start()
        self.addCleanup(patch.stop)

    def serve(self, *turns: Any) -> ScriptedServer:
        server = ScriptedServer(*turns)
        server.__enter__()
        self.addCleanup(server.__exit__)
        return server

    def locker(self, server: ScriptedServer, **settings: Any) -> Locker:
        settings = {"ID": "A", "Timeout": 30, **settings}
        return Locker("k", Port=server.port, **settings)


class Requests(Case):
    def test_lock_and_unlock_never_include_a_data_store(self) -> None:
        server = self.serve(LOCKED, answer("Unlocked", ID="A"))
        lock = self.locker(server)
        lock.Lock(expire=30)
        lock.Unlock()
        self.assertEqual(
            server.requests,
            [
                {"ID": "A", "FileName": "k", "Action": "Lock", "Expire": "30"},
                {"ID": "A", "FileName": "k", "Action": "Unlock", "Expire": "0"},
            ],
        )

    def test_put_get_erase_and_version_always_include_one(self) -> None:
        server = self.serve(answer("Done", ID="A"))
        lock = self.locker(server)
        lock.Put(300, "step 2 complete")
        lock.Get()
        lock.Erase()
        lock.Version()
        stored = encoded("step 2 complete").decode()
        self.assertEqual(
            server.requests,
            [
                {
                    "ID": "A",
                    "FileName": "k",
                    "Action": "Put",
                    "Expire": "300",
                    "DataStore": stored,
                },
                {"ID": "A", "FileName": "k", "Action": "Get", "Expire": "0", "DataStore": None},
                {"ID": "A", "FileName": "k", "Action": "Erase", "Expire": "0", "DataStore": None},
                {
                    "ID": "A",
                    "FileName": "k",
                    "Action": "Version",
                    "Expire": "0",
                    "DataStore": None,
                },
            ],
        )

    def test_put_takes_its_arguments_by_place_and_by_name(self) -> None:
        server = self.serve(answer("Done", ID="A"))
        data = self.locker(server)
        data.Put(10, "x")
        data.Put(data="x", expire=10)
        data.Put(10, data="x")
        self.assertEqual(server.requests, [server.requests[0]] * 3)

    def test_expire_is_300_seconds_where_none_is_given(self) -> None:
        server = self.serve(LOCKED)
        lock = self.locker(server)
        lock.Lock()
        lock.IsLocked()
        self.assertEqual([request["Expire"] for request in server.requests], ["300", "300"])

    def test_expire_may_be_any_number_or_its_text(self) -> None:
        server = self.serve(LOCKED)
        lock = self.locker(server)
        for expire in (30, 0.5, "12.5"):
            self.assertEqual(lock.Lock(expire), "locked")
        self.assertEqual([request["Expire"] for request in server.requests], ["30", "0.5", "12.5"])

    def test_islocked_without_acquire_asks_testlock(self) -> None:
        server = self.serve(LOCKED, answer("Unlocked"), NOT_OWNER)
        lock = self.locker(server)
        self.assertEqual(lock.IsLocked(30, acquire=False), "locked")
        self.assertEqual(lock.IsLocked(30, False), "unlocked")
        self.assertEqual(lock.IsLocked(acquire=False), "notowner")
        self.assertEqual({request["Action"] for request in server.requests}, {"TestLock"})

    def test_name_and_identity_come_with_every_request(self) -> None:
        server = self.serve(answer("Done", ID="A"))
        lock = self.locker(server, name="myWorker", identity="secret", Retry=0)
        for call in (lock.Lock, lock.IsLocked, lock.Unlock, lock.Get, lock.Erase, lock.Version):
            call()
        lock.Put(1, "x")
        self.assertEqual(len(server.requests), 7)
        for request in server.requests:
            self.assertEqual((request["Name"], request["Identity"]), ("myWorker", "secret"))

    def test_one_of_name_and_identity_alone_sends_null_for_the_other(self) -> None:
        server = self.serve(answer("BadPayload"))
        self.locker(server, name="myWorker").IsLocked()
        self.locker(server, identity="secret").IsLocked()
        self.assertEqual(
            [(request["Name"], request["Identity"]) for request in server.requests],
            [("myWorker", None), (None, "secret")],
        )

    def test_neither_name_nor_identity_sends_neither(self) -> None:
        server = self.serve(LOCKED)
        self.locker(server).Lock()
        self.assertNotIn("Name", server.requests[0])
        self.assertNotIn("Identity", server.requests[0])

    def test_every_locker_makes_an_id_of_its_own(self) -> None:
        made = {Locker("k").ID for _ in range(100)}
        self.assertEqual(len(made), 100)
        self.assertTrue(all(len(made_id) <= 1024 and made_id.isprintable() for made_id in made))

    def test_text_beyond_ascii_arrives_whole(self) -> None:
        server = self.serve(LOCKED)
        Locker("naïve ☃", ID="ünï", Port=server.port).Lock()
        self.assertEqual(
            (server.requests[0]["FileName"], server.requests[0]["ID"]), ("naïve ☃", "ünï")
        )


class Constructor(unittest.TestCase):
    def test_arguments_have_the_order_of_the_reference(self) -> None:
        with ScriptedServer(answer("Done", ID="A", DataStore="stored")) as server:
            data = Locker(
                "k",
                0,
                0,
                30,
                "A",
                "127.0.0.1",
                server.port,
                lambda content: f"<{content}>",
                lambda content: f"[{content}]",
                "myWorker",
                "secret",
            )
            data.Put(5, "x")
            self.assertEqual(data.Get(), {"Status": "Done", "ID": "A", "DataStore": "[stored]"})
        self.assertEqual(
            server.requests[0],
            {
                "ID": "A",
                "FileName": "k",
                "Action": "Put",
                "Expire": "5",
                "DataStore": "<x>",
                "Name": "myWorker",
                "Identity": "secret",
            },
        )

    def test_attributes_of_the_reference(self) -> None:
        lock = Locker("k", ID="DEADBEEF")
        self.assertEqual(lock.ID, "DEADBEEF")
        self.assertEqual(lock.VERSION, "0.0.0.1.580")
        self.assertIsNone(lock.Error)

    def test_the_address_is_the_reference_one_unless_given(self) -> None:
        with mock.patch("DLMLocker._locker.socket.create_connection") as connect:
            connect.side_effect = ConnectionRefusedError("refused")
            Locker("k", Retry=0).Lock()
            Locker("k", Retry=0, Host="lock.example", Port=4).Lock()
        self.assertEqual(
            connect.call_args_list,
            [
                mock.call(("127.0.0.1", 37373), timeout=300),
                mock.call(("lock.example", 4), timeout=300),
            ],
        )

    def test_a_copy_has_the_id_and_an_error_of_its_own(self) -> None:
        lock = Locker("k", Retry=0, Host="127.0.0.1", Port=free_port())
        self.assertEqual(lock.Lock(), "failure")
        for other in (pickle.loads(pickle.dumps(lock)), copy.deepcopy(lock)):
            self.assertEqual(other.ID, lock.ID)
            self.assertIsNone(other.Error)


class Retries(Case):
    def test_lock_tries_again_while_another_holds_it(self) -> None:
        server = self.serve(NOT_OWNER, NOT_OWNER, LOCKED)
        lock = self.locker(server, Retry=5, RetrySleep=2)
        self.assertEqual(lock.Lock(30), "locked")
        self.assertIsNone(lock.Error)
        self.assertEqual(len(server.requests), 3)
        self.assertEqual(self.slept, [2, 2])

    def test_lock_gives_up_after_the_last_retry_without_another_sleep(self) -> None:
        server = self.serve(NOT_OWNER)
        lock = self.locker(server, Retry=3, RetrySleep=2)
        self.assertEqual(lock.Lock(30), "failure")
        self.assertEqual(lock.Error, "NotOwner")
        self.assertEqual(len(server.requests), 4)
        self.assertEqual(self.slept, [2, 2, 2])

    def test_no_retry_is_one_attempt(self) -> None:
        server = self.serve(NOT_OWNER, LOCKED)
        self.assertEqual(self.locker(server, Retry=0).Lock(), "failure")
        self.assertEqual(len(server.requests), 1)
        self.assertEqual(self.slept, [])

    def test_refusals_and_lost_connections_share_one_budget(self) -> None:
        server = self.serve(hang_up, NOT_OWNER, reset, NOT_OWNER, LOCKED)
        self.assertEqual(self.locker(server, Retry=3).Lock(), "failure")
        self.assertEqual(len(server.requests), 4)
        self.assertEqual(self.slept, [1, 1, 1])

    def test_a_full_server_is_asked_again(self) -> None:
        server = self.serve(answer("NO"), LOCKED)
        self.assertEqual(self.locker(server).Lock(), "locked")

    def test_a_request_that_is_wrong_is_not_sent_again(self) -> None:
        for status in ("BadPayload", "BadAction"):
            server = self.serve(answer(status))
            lock = self.locker(server)
            for call in (lock.Lock, lock.Unlock):
                self.assertEqual(call(), "failure")
                self.assertEqual(lock.Error, status)
            self.assertEqual(len(server.requests), 2)
        self.assertEqual(self.slept, [])

    def test_islocked_is_one_attempt_whatever_comes(self) -> None:
        for turn, outcome in (
            (LOCKED, "locked"),
            (NOT_OWNER, "notowner"),
            (answer("BadPayload"), None),
            (answer("NO"), None),
            (answer("Unlocked"), None),
            (hang_up, None),
            (send(b"garbage\n"), None),
        ):
            server = self.serve(turn)
            lock = self.locker(server)
            self.assertEqual(lock.IsLocked(30), outcome)
            self.assertEqual(lock.Error is None, outcome is not None)
            self.assertEqual(len(server.requests), 1)
        self.assertEqual(self.slept, [])

    def test_unlock_survives_lost_connections(self) -> None:
        server = self.serve(hang_up, reset, answer("Unlocked"))
        self.assertEqual(self.locker(server).Unlock(), "unlocked")
        self.assertEqual(self.slept, [1, 1])

    def test_unlock_of_a_lock_that_is_anothers_fails_at_once(self) -> None:
        server = self.serve(NOT_OWNER)
        lock = self.locker(server)
        self.assertEqual(lock.Unlock(), "failure")
        self.assertEqual(lock.Error, "NotOwner")
        self.assertEqual(len(server.requests), 1)

    def test_data_calls_survive_lost_connections(self) -> None:
        calls: list[Callable[[Locker], Any]] = [
            lambda data: json.loads(data.Put(30, "x")),
            lambda data: data.Get(),
            lambda data: json.loads(data.Erase()),
        ]
        for call in calls:
            server = self.serve(hang_up, send(b"garbage\n"), answer("Done", ID="A"))
            data = self.locker(server)
            self.assertEqual(call(data), {"Status": "Done", "ID": "A"})
            self.assertIsNone(data.Error)
            self.assertEqual(len(server.requests), 3)

    def test_without_a_server_every_call_fails_within_its_budget(self) -> None:
        lock = Locker("k", Retry=2, RetrySleep=1, Port=free_port())
        for call, outcome in (
            (lock.Lock, "failure"),
            (lock.Unlock, "failure"),
            (lambda: lock.Put(300, "x"), "failure"),
            (lock.Get, None),
            (lock.Erase, "failure"),
            (lock.Version, "Error:0.0.0.1.580"),
            (lock.IsDLM, False),
        ):
            self.slept.clear()
            lock.Error = None
            self.assertEqual(call(), outcome)
            self.assertTrue(lock.Error)
            self.assertEqual(self.slept, [1, 1])
        self.assertIsNone(lock.IsLocked())


class Answers(Case):
    def test_put_and_erase_hand_back_the_answer_whatever_its_status(self) -> None:
        for status in ("Done", "NotOwner", "NotFound", "BadPayload", "NO", "Corruption"):
            server = self.serve(answer(status))
            data = self.locker(server)
            for payload in (data.Put(30, "x"), data.Erase()):
                self.assertEqual(json.loads(payload), {"Status": status})
            self.assertIsNone(data.Error)
            self.assertEqual(len(server.requests), 2)

    def test_get_is_a_dict_for_every_answer(self) -> None:
        for status in ("NotFound", "NotOwner", "NoData", "Corruption", "BadPayload"):
            server = self.serve(answer(status))
            data = self.locker(server)
            self.assertEqual(data.Get(), {"Status": status})
            self.assertIsNone(data.Error)
            self.assertEqual(len(server.requests), 1)

    def test_get_decodes_the_data_store(self) -> None:
        server = self.serve(
            answer("Done", ID="A", DataStore=encoded("step 2 complete ☃").decode()),
            answer("Done", ID="A", DataStore=""),
        )
        data = self.locker(server)
        self.assertEqual(
            data.Get(), {"Status": "Done", "ID": "A", "DataStore": "step 2 complete ☃"}
        )
        self.assertEqual(data.Get(), {"Status": "Done", "ID": "A", "DataStore": ""})

    def test_put_encodes_text_bytes_and_dicts(self) -> None:
        server = self.serve(answer("Done", ID="A"))
        data = self.locker(server)
        for content, stored in (
            ("tëxt", "tëxt".encode()),
            (b"bytes", b"bytes"),
            (bytearray(b"bytes"), b"bytes"),
            ({"step": 2}, b'{"step": 2}'),
        ):
            data.Put(30, content)
            self.assertEqual(_wire.decode(server.requests[-1]["DataStore"].encode()), stored)
        with self.assertRaises(TypeError):
            data.Put(30, 5)

    def test_encoder_and_decoder_change_content_and_not_the_wire(self) -> None:
        server = self.serve(answer("Done", ID="A", DataStore="esrever"))
        data = self.locker(
            server, Encoder=lambda content: content[::-1], Decoder=lambda content: content[::-1]
        )
        data.Put(30, "reverse")
        # The scripted server decoded the request with the standard table, or it would be missing.
        self.assertEqual(server.requests[0]["DataStore"], "esrever")
        self.assertEqual(data.Get(), {"Status": "Done", "ID": "A", "DataStore": "reverse"})

    def test_a_decoder_may_return_bytes(self) -> None:
        server = self.serve(answer("Done", ID="A", DataStore="c3RlcA=="))
        data = self.locker(server, Decoder=lambda content: content.encode())
        self.assertEqual(data.Get(), {"Status": "Done", "ID": "A", "DataStore": "c3RlcA=="})

    def test_content_that_another_encoder_wrote_is_a_failure(self) -> None:
        for content in ("not ours", "é", None, encoded("x").decode() + "1"):
            server = self.serve(answer("Done", ID="A", DataStore=content))
            data = self.locker(server)
            self.assertIsNone(data.Get())
            self.assertIn("DataStore", str(data.Error))
            self.assertEqual(len(server.requests), 1)

    def test_an_answer_that_is_none_is_a_failed_attempt(self) -> None:
        for message in (
            b"",
            b"\n",
            b"   \r\n",
            b"garbage\n",
            b"\xff\xfe\n",
            encoded("{") + b"\n",
            encoded("5") + b"\n",
            encoded("null") + b"\n",
            encoded("[]") + b"\n",
            encoded("{}") + b"\n",
            encoded('{"Status": 5}') + b"\n",
            encoded("[" * 100_000) + b"\n",
            _wire.encode(b'{"Status": "\xff"}') + b"\n",
            encoded('{"Status": "Locked"}')[:-2],
        ):
            server = self.serve(send(message))
            lock = self.locker(server, Retry=1)
            self.assertEqual(lock.Lock(), "failure", message[:50])
            self.assertTrue(lock.Error)
            self.assertIsNone(lock.Get())
            self.assertEqual(lock.Put(1, "x"), "failure")
            self.assertEqual(lock.Version(), "Error:0.0.0.1.580")
            self.assertIsNone(lock.IsLocked())
            self.assertEqual(len(server.requests), 9)

    def test_a_status_out_of_place_is_a_failed_attempt(self) -> None:
        server = self.serve(answer("Done", ID="A"), answer("Frobbed"), LOCKED)
        self.assertEqual(self.locker(server).Lock(), "locked")
        self.assertEqual(len(server.requests), 3)

    def test_white_space_around_an_answer_and_inside_it_is_ignored(self) -> None:
        server = self.serve(send(b" " + encoded('\n {"Status": "LOCKED"} \n') + b"\r\n"))
        self.assertEqual(self.locker(server).Lock(), "locked")

    def test_an_answer_may_come_in_pieces(self) -> None:
        line = encoded('{"Status": "Locked", "ID": "A"}') + b"\n"

        def piecewise(connection: socket.socket, request: Any) -> None:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for byte in line:
                connection.sendall(bytes([byte]))

        self.assertEqual(self.locker(self.serve(piecewise)).Lock(), "locked")

    def test_version_is_both_versions(self) -> None:
        server = self.serve(answer("Version", ID="JackrabbitDLM/0.0.0.2.830"))
        lock = self.locker(server)
        self.assertEqual(lock.Version(), "JackrabbitDLM/0.0.0.2.830:0.0.0.1.580")
        self.assertTrue(lock.IsDLM())

    def test_another_server_is_no_dlm(self) -> None:
        server = self.serve(answer("Version", ID="Other/1"))
        self.assertFalse(self.locker(server).IsDLM())
        server = self.serve(answer("BadPayload"))
        lock = self.locker(server)
        self.assertEqual(lock.Version(), "Error:0.0.0.1.580")
        self.assertEqual(lock.Error, "BadPayload")

    def test_an_answer_without_end_is_given_up(self) -> None:
        def pour(connection: socket.socket, request: Any) -> None:
            try:
                while True:
                    connection.sendall(b"1" * 65536)
            except OSError:
                return

        with mock.patch("DLMLocker._locker._MAX_ANSWER_BYTES", 1024 * 1024):
            data = self.locker(self.serve(pour), Retry=0)
            self.assertIsNone(data.Get())
        self.assertEqual(data.Error, "the answer does not end")

    def test_the_answer_to_a_request_refused_half_way_is_read(self) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(listener.close)

        def refuse_half_way() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(encoded('{"Status": "BadPayload"}') + b"\n")
                # Unread input turns this close into a reset.

        thread = threading.Thread(target=refuse_half_way)
        thread.start()
        data = Locker("k", Retry=0, Timeout=30, Port=listener.getsockname()[1])
        payload = data.Put(30, "x" * (11 * 1024 * 1024))
        thread.join()
        self.assertEqual(json.loads(payload), {"Status": "BadPayload"})


class Time(Case):
    def clock(self, *readings: float) -> None:
        """Lets the client read these times, then the last one for ever."""
        rest = list(readings)
        patch = mock.patch(
            "DLMLocker._locker._now_s", lambda: rest.pop(0) if len(rest) > 1 else rest[0]
        )
        patch.start()
        self.addCleanup(patch.stop)

    def test_a_lock_that_is_told_in_time_is_held(self) -> None:
        for expire in (30, 30.0, "30"):
            # Sent at 100 s, judged just before 130 s.
            self.clock(100, 129.999)
            lock = self.locker(self.serve(LOCKED), Retry=0, Timeout=None)
            self.assertEqual(lock.Lock(expire), "locked")

    def test_a_lock_that_is_told_too_late_is_a_failure(self) -> None:
        for expire in (30, 30.0, "30"):
            self.clock(100, 130)
            lock = self.locker(self.serve(LOCKED), Retry=0, Timeout=None)
            self.assertEqual(lock.Lock(expire), "failure")
            self.assertTrue(lock.Error)

            self.clock(100, 130)
            lock = self.locker(self.serve(LOCKED), Timeout=None)
            self.assertIsNone(lock.IsLocked(expire))
            self.assertTrue(lock.Error)

    def test_a_lock_that_is_told_too_late_is_asked_for_again(self) -> None:
        # Late at first; the second request is sent at 140 s.
        self.clock(100, 131, 140, 141)
        server = self.serve(LOCKED)
        lock = self.locker(server, Retry=1, Timeout=None)
        self.assertEqual(lock.Lock(30), "locked")
        self.assertIsNone(lock.Error)
        self.assertEqual(len(server.requests), 2)

    def test_what_testlock_tells_has_no_end(self) -> None:
        self.clock(100, 500)
        lock = self.locker(self.serve(LOCKED), Timeout=None)
        self.assertEqual(lock.IsLocked(0, acquire=False), "locked")

    def test_a_silent_server_is_given_up_after_the_timeout(self) -> None:
        with ScriptedServer(say_nothing) as server:
            lock = self.locker(server, Retry=1, Timeout=0.05)
            self.assertEqual(lock.Lock(), "failure")
            self.assertIn("timed out", str(lock.Error))
        self.assertEqual(len(server.requests), 2)

    def test_the_timeout_is_not_stretched_by_a_trickle(self) -> None:
        given_up = threading.Event()

        def trickle(connection: socket.socket, request: Any) -> None:
            connection.settimeout(0.02)
            for _ in range(500):
                try:
                    connection.sendall(b" ")
                    if connection.recv(1) == b"":
                        given_up.set()
                        return
                except socket.timeout:
                    continue
                except OSError:
                    given_up.set()
                    return
            connection.sendall(encoded('{"Status": "Locked"}') + b"\n")

        server = self.serve(trickle)
        self.assertEqual(self.locker(server, Retry=0, Timeout=0.2).Lock(), "failure")
        self.assertTrue(given_up.wait(30))


class Blocks(Case):
    def test_the_block_runs_between_lock_and_unlock(self) -> None:
        server = self.serve(LOCKED, answer("Unlocked", ID="A"))
        with self.locker(server) as lock:
            self.assertIsInstance(lock, Locker)
            self.assertEqual([request["Action"] for request in server.requests], ["Lock"])
        self.assertEqual([request["Action"] for request in server.requests], ["Lock", "Unlock"])

    def test_the_block_never_runs_without_the_lock(self) -> None:
        server = self.serve(NOT_OWNER)
        ran = False
        with self.assertRaisesRegex(LockFailed, "k: NotOwner"):
            with self.locker(server, Retry=1):
                ran = True
        self.assertFalse(ran)
        self.assertEqual([request["Action"] for request in server.requests], ["Lock", "Lock"])

    def test_what_the_block_raises_comes_out_after_the_unlock(self) -> None:
        server = self.serve(LOCKED, NOT_OWNER)
        lock = self.locker(server)
        with self.assertRaises(KeyError):
            with lock:
                raise KeyError("the block's own")
        self.assertEqual([request["Action"] for request in server.requests], ["Lock", "Unlock"])
        self.assertEqual(lock.Error, "NotOwner")


class Threads(Case):
    def test_each_thread_gets_the_answer_to_its_own_request(self) -> None:
        def echo(connection: socket.socket, request: Any) -> None:
            answer("Done", ID=request["DataStore"])(connection, request)

        data = self.locker(self.serve(echo), Encoder=str)
        wrong: list[Any] = []

        def work(number: int) -> None:
            for turn in range(25):
                content = f"{number}.{turn}"
                if json.loads(data.Put(30, content)) != {"Status": "Done", "ID": content}:
                    wrong.append(content)

        run_together(8, work)
        self.assertEqual(wrong, [])

    def test_each_thread_sees_its_own_error(self) -> None:
        def refuse_odd(connection: socket.socket, request: Any) -> None:
            status = "BadPayload" if float(request["Expire"]) % 2 else "Locked"
            answer(status)(connection, request)

        lock = self.locker(self.serve(refuse_odd))
        all_called = threading.Barrier(8)
        errors: dict[int, Any] = {}

        def work(number: int) -> None:
            lock.Lock(expire=1000 + number)
            all_called.wait(30)
            errors[number] = lock.Error

        run_together(8, work)
        self.assertEqual(
            errors, {number: "BadPayload" if number % 2 else None for number in range(8)}
        )


def run_together(count: int, work: Any) -> None:
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def free_port() -> int:
    """A port where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


if __name__ == "__main__":
    unittest.main()
