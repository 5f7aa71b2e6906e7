"""The client and the real server: the reference's examples, and the vectors."""

from __future__ import annotations

import base64
import json
import threading
import unittest
from typing import Any

from checkout import CHECKOUT
from real_server import RealServer, needs_server
from DLMLocker import Locker, LockFailed

VECTORS = CHECKOUT / "tests" / "vectors" / "dlm-basic.jsonl"


class Case(unittest.TestCase):
    """Each test has a server of its own."""

    def setUp(self) -> None:
        self.server = RealServer()
        self.addCleanup(self.server.stop)

    def locker(self, filename: str, **settings: Any) -> Locker:
        return Locker(filename, Port=self.server.port, **{"Timeout": 60, **settings})


@needs_server
class ProtocolExamples(Case):
    """The reference's requests, sent as they stand there."""

    def test_lock(self) -> None:
        lock = {"ID": "DEADBEEF", "FileName": "myResource", "Action": "Lock", "Expire": "30"}
        locked = {"Status": "Locked", "ID": "DEADBEEF"}
        self.assertEqual(self.server.ask(lock), locked)
        self.assertEqual(self.server.ask(lock), locked)
        self.assertEqual(self.server.ask({**lock, "ID": "OTHER"}), {"Status": "NotOwner"})
        self.assertEqual(self.server.ask({**lock, "Expire": "x"}), {"Status": "BadPayload"})

    def test_unlock(self) -> None:
        unlock = {"ID": "DEADBEEF", "FileName": "myResource", "Action": "Unlock", "Expire": "0"}
        self.assertEqual(self.server.ask(unlock), {"Status": "Unlocked"})
        self.server.ask({**unlock, "Action": "Lock", "Expire": "30"})
        self.assertEqual(self.server.ask({**unlock, "ID": "OTHER"}), {"Status": "NotOwner"})
        self.assertEqual(self.server.ask(unlock), {"Status": "Unlocked", "ID": "DEADBEEF"})

    def test_put_get_and_erase(self) -> None:
        put = {
            "ID": "DEADBEEF",
            "FileName": "myResource",
            "Action": "Put",
            "Expire": "300",
            "DataStore": "step 2 complete",
        }
        get = {"ID": "DEADBEEF", "FileName": "myResource", "Action": "Get", "Expire": "0"}
        erase = {"ID": "DEADBEEF", "FileName": "myResource", "Action": "Erase", "Expire": "0"}
        done = {"Status": "Done", "ID": "DEADBEEF"}
        self.assertEqual(self.server.ask(get), {"Status": "NotFound"})
        self.assertEqual(self.server.ask(put), done)
        self.assertEqual(self.server.ask(get), {**done, "DataStore": "step 2 complete"})
        for request in (put, get, erase):
            self.assertEqual(self.server.ask({**request, "ID": "OTHER"}), {"Status": "NotOwner"})
        self.assertEqual(self.server.ask(erase), done)
        self.assertEqual(self.server.ask(erase), {"Status": "NotFound"})

    def test_get_of_a_lock_without_data(self) -> None:
        get = {"ID": "DEADBEEF", "FileName": "myResource", "Action": "Get", "Expire": "0"}
        self.server.ask({**get, "Action": "Lock", "Expire": "30"})
        self.assertEqual(self.server.ask(get), {"Status": "NoData", "ID": "DEADBEEF"})

    def test_version(self) -> None:
        answer = self.server.ask(
            {"ID": "any", "FileName": "any", "Action": "Version", "Expire": "0"}
        )
        self.assertEqual(answer["Status"], "Version")
        self.assertRegex(answer["ID"], r"^JackrabbitDLM/0\.0\.0\.2\.855 \S+")
        self.assertEqual(set(answer), {"Status", "ID"})


@needs_server
class LibraryExamples(Case):
    """The reference's method examples, with its arguments."""

    def test_lock_and_unlock(self) -> None:
        lock = self.locker("myResource")
        self.assertEqual(lock.Lock(expire=30), "locked")
        self.assertEqual(lock.Unlock(), "unlocked")
        self.assertEqual(lock.Unlock(), "unlocked")
        self.assertIsNone(lock.Error)

    def test_is_locked(self) -> None:
        lock, other = self.locker("myResource"), self.locker("myResource")
        self.assertEqual(lock.IsLocked(acquire=False), "unlocked")
        self.assertEqual(lock.IsLocked(expire=10), "locked")
        self.assertEqual(lock.IsLocked(acquire=False), "locked")
        self.assertEqual(other.IsLocked(expire=10), "notowner")
        self.assertEqual(other.IsLocked(acquire=False), "notowner")
        self.assertIsNone(other.IsLocked(expire=0))
        self.assertEqual(other.Error, "BadPayload")

    def test_lock_fails_while_another_holds_it(self) -> None:
        self.assertEqual(self.locker("myResource").Lock(expire=300), "locked")
        other = self.locker("myResource", Retry=2, RetrySleep=0)
        self.assertEqual(other.Lock(expire=30), "failure")
        self.assertEqual(other.Error, "NotOwner")
        self.assertEqual(other.Unlock(), "failure")

    def test_lock_waits_for_the_end_of_anothers(self) -> None:
        lock = {"ID": "DEADBEEF", "FileName": "myResource", "Action": "Lock", "Expire": "0.2"}
        self.assertEqual(self.server.ask(lock)["Status"], "Locked")
        other = self.locker("myResource", Retry=6000, RetrySleep=0.01)
        self.assertEqual(other.Lock(expire=30), "locked")

    def test_put_get_and_erase(self) -> None:
        lock = self.locker("myResource")
        done = {"Status": "Done", "ID": lock.ID}
        self.assertEqual(lock.Get(), {"Status": "NotFound"})
        self.assertEqual(json.loads(lock.Put(expire=300, data="step 2 complete")), done)
        self.assertEqual(lock.Get(), {**done, "DataStore": "step 2 complete"})
        self.assertEqual(json.loads(lock.Erase()), done)
        self.assertEqual(lock.Get(), {"Status": "NotFound"})
        self.assertEqual(json.loads(lock.Erase()), {"Status": "NotFound"})

    def test_version_and_is_dlm(self) -> None:
        lock = self.locker("myResource", Retry=0)
        self.assertRegex(lock.Version(), r"^JackrabbitDLM/0\.0\.0\.2\.855 .+:0\.0\.0\.1\.580$")
        self.assertTrue(lock.IsDLM())
        self.server.stop()
        self.assertEqual(lock.Version(), "Error:0.0.0.1.580")
        self.assertFalse(lock.IsDLM())

    def test_custom_encoding(self) -> None:
        def my_encoder(data: Any) -> str:
            if isinstance(data, dict):
                data = json.dumps(data)
            if isinstance(data, str):
                data = data.encode("utf-8")
            return base64.b64encode(data).decode()

        def my_decoder(data: str) -> str:
            return base64.b64decode(data.encode()).decode()

        data = self.locker("myResource", ID="worker-data", Encoder=my_encoder, Decoder=my_decoder)
        data.Put(300, {"step": 2})
        self.assertEqual(
            self.server.ask(
                {"ID": "worker-data", "FileName": "myResource", "Action": "Get", "Expire": "0"}
            )["DataStore"],
            base64.b64encode(b'{"step": 2}').decode(),
        )
        self.assertEqual(
            data.Get(), {"Status": "Done", "ID": "worker-data", "DataStore": '{"step": 2}'}
        )
        # The same content read by a client without that Decoder.
        self.assertIsNone(self.locker("myResource", ID="worker-data").Get())


@needs_server
class TwoChannels(Case):
    def test_example(self) -> None:
        gate = self.locker("myResource", ID="worker-gate", Retry=5, RetrySleep=1)
        data = self.locker("myResource", ID="worker-data", Retry=5, RetrySleep=1)
        data.Put(data="41", expire=300)

        self.assertEqual(gate.Lock(expire=10), "locked")
        try:
            state = data.Get()
            self.assertIsNotNone(state)
            self.assertIn("DataStore", state or {})
            count = int((state or {})["DataStore"])
            data.Put(data=str(count + 1), expire=300)
        finally:
            self.assertEqual(gate.Unlock(), "unlocked")
        self.assertEqual((data.Get() or {}).get("DataStore"), "42")

    def test_workers_never_lose_a_count(self) -> None:
        workers, turns = 8, 20
        self.locker("myResource", ID="worker-data").Put(data="0", expire=300)
        outcomes: list[str] = []

        def work(number: int) -> None:
            gate = self.locker("myResource", ID=f"worker-gate-{number}", Retry=10**6, RetrySleep=0)
            data = self.locker("myResource", ID="worker-data")
            for _ in range(turns):
                outcomes.append(gate.Lock(expire=300))
                state = data.Get() or {}
                data.Put(data=str(int(state["DataStore"]) + 1), expire=300)
                outcomes.append(gate.Unlock())

        threads = [threading.Thread(target=work, args=(number,)) for number in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        self.assertEqual(outcomes.count("locked"), workers * turns)
        self.assertEqual(outcomes.count("unlocked"), workers * turns)
        state = self.locker("myResource", ID="worker-data").Get() or {}
        self.assertEqual(state.get("DataStore"), str(workers * turns))


@needs_server
class Blocks(Case):
    def test_a_block_holds_the_lock_and_gives_it_back(self) -> None:
        other = self.locker("myResource", Retry=0)
        with self.locker("myResource"):
            self.assertEqual(other.IsLocked(acquire=False), "notowner")
            with self.assertRaises(LockFailed):
                with other:
                    self.fail("two blocks at once")
        self.assertEqual(other.IsLocked(acquire=False), "unlocked")


@needs_server
class Limits(Case):
    IDENTITY = "i" * 1023

    def test_an_identity_lifts_the_anonymous_limits(self) -> None:
        config = {"Identity": self.IDENTITY, "MaxSize": 100_000}
        (self.server.config_dir / "myWorker.cfg").write_text(json.dumps(config))
        known = self.locker("known", name="myWorker", identity=self.IDENTITY, Retry=0)
        anonymous = self.locker("anonymous", Retry=0)
        # The standard encoding makes two characters of a byte.
        content = "x" * 50_000

        self.assertEqual(known.Lock(expire=3544), "locked")
        self.assertEqual(json.loads(known.Put(3544, content))["Status"], "Done")
        self.assertEqual((known.Get() or {}).get("DataStore"), content)
        self.assertEqual(json.loads(known.Put(30, content + "x"))["Status"], "BadPayload")

        self.assertEqual(anonymous.Lock(expire=3544), "failure")
        self.assertEqual(anonymous.Error, "BadPayload")
        self.assertEqual(json.loads(anonymous.Put(30, "x" * 8193))["Status"], "BadPayload")
        self.assertEqual(json.loads(anonymous.Put(30, "x" * 8192))["Status"], "Done")

    def test_half_an_identity_is_refused(self) -> None:
        for settings in ({"name": "myWorker"}, {"identity": self.IDENTITY}):
            lock = self.locker("k", Retry=0, **settings)
            self.assertEqual(lock.Lock(expire=30), "failure")
            self.assertEqual(lock.Error, "BadPayload")

    def test_a_request_over_ten_mebibytes_is_answered(self) -> None:
        data = self.locker("k", Retry=0)
        payload = data.Put(30, "x" * (6 * 1024 * 1024))
        self.assertEqual(json.loads(payload), {"Status": "BadPayload"})


@needs_server
class Vectors(unittest.TestCase):
    def test_every_case(self) -> None:
        cases = [json.loads(line) for line in VECTORS.read_text().splitlines()]
        self.assertTrue(cases)
        for case in cases:
            # Cases share names: each has a server that has not seen them.
            with RealServer() as server:
                for number, step in enumerate(case["steps"], start=1):
                    with self.subTest(case=case["case"], step=number):
                        self.assertEqual(server.ask(step["send"]), step["expect"])


if __name__ == "__main__":
    unittest.main()
