//! A session's bytes, in whatever pieces they come: the replies are the same.

use crate::source::Source;
use crate::talk::talk;
use leasehold::worker::Protocol;

/// The first byte chooses how much output stops the reading, the second how many of
/// the next ones decide the cuts; what is left is the stream.
pub(crate) fn run(data: &[u8]) {
    let [choice, cuts, rest @ ..] = data else {
        return;
    };
    let soft_limit_bytes = [64, 1 << 16][usize::from(*choice) % 2];
    let (cuts, stream) = rest.split_at(usize::from(*cuts).min(rest.len()));
    let whole = talk(Protocol::Native, soft_limit_bytes, stream, Source::new(&[]));
    let cut = talk(
        Protocol::Native,
        soft_limit_bytes,
        stream,
        Source::new(cuts),
    );
    assert_eq!(cut, whole);
    let single = vec![1; 2 * stream.len()];
    let bytewise = talk(
        Protocol::Native,
        soft_limit_bytes,
        stream,
        Source::new(&single),
    );
    assert_eq!(bytewise, whole);
}
