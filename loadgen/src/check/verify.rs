//! At the end: does the server say of each key what its answers said before?

use crate::clients::Violation;
use crate::net::Address;
use crate::target::hello;
use crate::workload::{KeyId, KeyText};
use leasehold::protocol::{ANY_LOOP, Reply, Request};
use std::io::{Read as _, Write as _};
use std::time::Duration;

/// What the answers said of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// Nobody holds it and nobody waits for it.
    Free,
    /// Somebody holds it.
    Held,
}

/// Questions under way at once.
const BATCH: usize = 512;
const PATIENCE: Duration = Duration::from_secs(10);

/// Asks a native server for the state of each key.
///
/// # Errors
/// It cannot be asked: one line.
pub(crate) fn verify(
    server: &Address,
    credential: &[u8],
    keys: &[(KeyId, Expected)],
    text: &mut KeyText,
) -> Result<Result<(), Violation>, String> {
    let named = |what: String| format!("{server}: asked for the state of keys: {what}");
    let stream = server.connect_blocking(PATIENCE);
    let mut stream = stream.map_err(|error| named(error.to_string()))?;
    let mut requests = hello(ANY_LOOP, credential);
    let mut received = Vec::new();
    let mut chunk = vec![0; 16 * 1024];
    let mut first = 0;
    for batch in keys.chunks(BATCH) {
        for (index, (key, _)) in batch.iter().enumerate() {
            let request = Request::Query {
                owner: (first + index) as u64,
                key: text.of(*key),
            };
            request.encode(&mut requests);
        }
        let sent = stream.write_all(&requests);
        sent.map_err(|error| named(error.to_string()))?;
        requests.clear();
        let mut open = batch.len();
        while open > 0 {
            let count = stream
                .read(&mut chunk)
                .map_err(|error| named(error.to_string()))?;
            if count == 0 {
                return Err(named("it closed the connection".into()));
            }
            received.extend_from_slice(&chunk[..count]);
            let mut taken = 0;
            while let Some((reply, length)) =
                Reply::decode(&received[taken..]).map_err(|error| named(error.to_string()))?
            {
                taken += length;
                match reply {
                    Reply::Welcome(_) => {}
                    Reply::State {
                        owner,
                        held,
                        waiters,
                        ..
                    } => {
                        open = open.saturating_sub(1);
                        let Some((key, expected)) = keys.get(owner as usize) else {
                            return Err(named("an answer to no question".into()));
                        };
                        if let Some(what) = fault(*expected, held, waiters) {
                            return Ok(Err(Violation {
                                what,
                                key: Some(*key),
                            }));
                        }
                    }
                    other => return Err(named(format!("{other:?}"))),
                }
            }
            received.drain(..taken);
        }
        first += batch.len();
    }
    Ok(Ok(()))
}

fn fault(expected: Expected, is_held: bool, waiters: u32) -> Option<String> {
    match (expected, is_held, waiters) {
        (Expected::Free, false, 0) | (Expected::Held, true, 0) => None,
        (Expected::Free, true, _) => Some("held at the end, though it was released".into()),
        (Expected::Held, false, _) => Some("free at the end, though it is held".into()),
        (_, _, waiters) => Some(format!("{waiters} waiters at the end, though nobody waits")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_said_before_is_in_order() {
        assert_eq!(fault(Expected::Free, false, 0), None);
        assert_eq!(fault(Expected::Held, true, 0), None);
        for (expected, is_held, waiters) in [
            (Expected::Free, true, 0),
            (Expected::Free, false, 1),
            (Expected::Held, false, 0),
            (Expected::Held, true, 2),
        ] {
            assert!(fault(expected, is_held, waiters).is_some());
        }
    }
}
