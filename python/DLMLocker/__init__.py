"""Locks and small shared data over the JackrabbitDLM protocol.

    from DLMLocker import Locker

    lock = Locker("nightly-report")
    if lock.Lock(expire=30) == 'locked':
        try:
            ...
        finally:
            lock.Unlock()

or, with a lock of 300 seconds, ``with Locker("nightly-report"): ...``.
"""

from ._locker import Locker, LockFailed

__all__ = ["Locker", "LockFailed"]
