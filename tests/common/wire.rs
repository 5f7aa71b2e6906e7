//! The protocol's frames, written by hand from its tables.

/// `A`: times in seconds.
pub fn acquire(owner: u64, wait_s: u8, lease_s: u8, key: impl AsRef<[u8]>) -> Vec<u8> {
    frame(b'A', &[&[wait_s, lease_s], &owner.to_be_bytes()], key)
}

/// `a`: times in milliseconds.
pub fn acquire_ms(owner: u64, wait_ms: u32, lease_ms: u32, key: impl AsRef<[u8]>) -> Vec<u8> {
    frame(
        b'a',
        &[
            &wait_ms.to_be_bytes(),
            &lease_ms.to_be_bytes(),
            &owner.to_be_bytes(),
        ],
        key,
    )
}

/// `R`.
pub fn release(owner: u64, token: u64, key: impl AsRef<[u8]>) -> Vec<u8> {
    frame(b'R', &[&owner.to_be_bytes(), &token.to_be_bytes()], key)
}

/// `X`: lease in seconds.
pub fn extend(owner: u64, lease_s: u8, token: u64, key: impl AsRef<[u8]>) -> Vec<u8> {
    frame(
        b'X',
        &[&[lease_s], &owner.to_be_bytes(), &token.to_be_bytes()],
        key,
    )
}

/// `x`: lease in milliseconds.
pub fn extend_ms(owner: u64, lease_ms: u32, token: u64, key: impl AsRef<[u8]>) -> Vec<u8> {
    frame(
        b'x',
        &[
            &lease_ms.to_be_bytes(),
            &owner.to_be_bytes(),
            &token.to_be_bytes(),
        ],
        key,
    )
}

/// `C`.
pub fn cancel(owner: u64, target: u64, key: impl AsRef<[u8]>) -> Vec<u8> {
    frame(b'C', &[&owner.to_be_bytes(), &target.to_be_bytes()], key)
}

/// `Q`.
pub fn query(owner: u64, key: impl AsRef<[u8]>) -> Vec<u8> {
    frame(b'Q', &[&owner.to_be_bytes()], key)
}

/// `P`; a key is what it must not have.
pub fn ping_with_key(owner: u64, key: impl AsRef<[u8]>) -> Vec<u8> {
    frame(b'P', &[&owner.to_be_bytes()], key)
}

/// `P`.
pub fn ping(owner: u64) -> Vec<u8> {
    ping_with_key(owner, b"")
}

/// Hello's wanted loop when any will do.
pub const ANY_LOOP: u16 = 0xFFFF;
/// Hello's flag bit 0.
pub const RELEASE_ON_CLOSE: u8 = 1;

/// `H`.
pub fn hello_version(
    version: u8,
    flags: u8,
    wanted_loop: u16,
    owner: u64,
    credential: impl AsRef<[u8]>,
) -> Vec<u8> {
    frame(
        b'H',
        &[
            &[version, flags],
            &wanted_loop.to_be_bytes(),
            &owner.to_be_bytes(),
        ],
        credential,
    )
}

/// `H` of version 1.
pub fn hello(flags: u8, wanted_loop: u16, owner: u64, credential: impl AsRef<[u8]>) -> Vec<u8> {
    hello_version(1, flags, wanted_loop, owner, credential)
}

fn frame(op: u8, fields: &[&[u8]], key: impl AsRef<[u8]>) -> Vec<u8> {
    let mut bytes = vec![op];
    fields.iter().for_each(|field| bytes.extend(*field));
    bytes.extend(key.as_ref());
    bytes.push(b'\n');
    bytes
}

/// One reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    Acquired {
        owner: u64,
        token: u64,
        waited_ms: u32,
    },
    TimedOut(u64),
    Busy(u64),
    Released(u64),
    Extended {
        owner: u64,
        remaining_ms: u32,
    },
    NotHeld(u64),
    State {
        owner: u64,
        held: bool,
        remaining_ms: u32,
        waiters: u32,
    },
    CancelDone {
        owner: u64,
        cancelled: bool,
    },
    Pong(u64),
    Welcome(Welcome),
    Error {
        owner: u64,
        code: u8,
    },
}

/// What Hello is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    pub owner: u64,
    pub version: u8,
    pub flags: u8,
    pub loops: u16,
    pub loop_index: u16,
    pub routing_seed: u64,
    pub max_key_bytes: u16,
    pub max_lease_ms: u32,
}

impl Reply {
    /// The owner of the request that it answers.
    pub fn owner(&self) -> u64 {
        match *self {
            Reply::TimedOut(owner)
            | Reply::Busy(owner)
            | Reply::Released(owner)
            | Reply::NotHeld(owner)
            | Reply::Pong(owner)
            | Reply::Acquired { owner, .. }
            | Reply::Extended { owner, .. }
            | Reply::State { owner, .. }
            | Reply::CancelDone { owner, .. }
            | Reply::Welcome(Welcome { owner, .. })
            | Reply::Error { owner, .. } => owner,
        }
    }

    /// The first reply of `bytes` and its length, `None` while it is incomplete.
    ///
    /// # Panics
    /// The bytes are no reply of this protocol.
    pub fn read(bytes: &[u8]) -> Option<(Reply, usize)> {
        let op = *bytes.first()?;
        let length = match op {
            b'A' => 1 + 8 + 8 + 4 + 1,
            b'T' | b'B' | b'R' | b'N' | b'P' => 1 + 8 + 1,
            b'X' => 1 + 8 + 4 + 1,
            b'Q' => 1 + 8 + 1 + 4 + 4 + 1,
            b'C' | b'E' => 1 + 8 + 1 + 1,
            b'H' => 1 + 8 + 1 + 1 + 2 + 2 + 8 + 2 + 4 + 1,
            _ => panic!("no reply starts with {op:#04x}: {bytes:02x?}"),
        };
        let frame = bytes.get(..length)?;
        assert_eq!(frame[length - 1], b'\n', "no newline ends {frame:02x?}");
        let mut fields = Fields(&frame[1..length - 1]);
        let owner = u64::from_be_bytes(fields.take());
        let reply = match op {
            b'A' => Reply::Acquired {
                owner,
                token: u64::from_be_bytes(fields.take()),
                waited_ms: u32::from_be_bytes(fields.take()),
            },
            b'T' => Reply::TimedOut(owner),
            b'B' => Reply::Busy(owner),
            b'R' => Reply::Released(owner),
            b'N' => Reply::NotHeld(owner),
            b'P' => Reply::Pong(owner),
            b'X' => Reply::Extended {
                owner,
                remaining_ms: u32::from_be_bytes(fields.take()),
            },
            b'Q' => Reply::State {
                owner,
                held: fields.flag(),
                remaining_ms: u32::from_be_bytes(fields.take()),
                waiters: u32::from_be_bytes(fields.take()),
            },
            b'C' => Reply::CancelDone {
                owner,
                cancelled: fields.flag(),
            },
            b'H' => Reply::Welcome(Welcome {
                owner,
                version: u8::from_be_bytes(fields.take()),
                flags: u8::from_be_bytes(fields.take()),
                loops: u16::from_be_bytes(fields.take()),
                loop_index: u16::from_be_bytes(fields.take()),
                routing_seed: u64::from_be_bytes(fields.take()),
                max_key_bytes: u16::from_be_bytes(fields.take()),
                max_lease_ms: u32::from_be_bytes(fields.take()),
            }),
            _ => Reply::Error {
                owner,
                code: u8::from_be_bytes(fields.take()),
            },
        };
        assert!(fields.0.is_empty(), "fields left over in {frame:02x?}");
        Some((reply, length))
    }
}

struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) = self.0.split_at(N);
        self.0 = rest;
        field.try_into().expect("split_at gave N bytes")
    }

    fn flag(&mut self) -> bool {
        match self.take() {
            [0u8] => false,
            [1u8] => true,
            [other] => panic!("{other} stands where 0 or 1 must"),
        }
    }
}

// The bytes below are spelled out from the protocol's tables, not produced by anything.
#[test]
fn requests_are_the_documented_bytes() {
    const OWNER: u64 = 0x0102_0304_0506_0708;
    const TOKEN: u64 = 0x1112_1314_1516_170a;
    let cases: [(Vec<u8>, &[u8]); 9] = [
        (
            acquire(OWNER, 3, 10, "k"),
            b"A\x03\x0a\x01\x02\x03\x04\x05\x06\x07\x08k\n",
        ),
        (
            acquire_ms(OWNER, 258, 65_536, "k"),
            b"a\0\0\x01\x02\0\x01\0\0\x01\x02\x03\x04\x05\x06\x07\x08k\n",
        ),
        (
            release(OWNER, TOKEN, "k"),
            b"R\x01\x02\x03\x04\x05\x06\x07\x08\x11\x12\x13\x14\x15\x16\x17\x0ak\n",
        ),
        (
            extend(OWNER, 9, TOKEN, "k"),
            b"X\x09\x01\x02\x03\x04\x05\x06\x07\x08\x11\x12\x13\x14\x15\x16\x17\x0ak\n",
        ),
        (
            extend_ms(OWNER, 10, TOKEN, "k"),
            b"x\0\0\0\x0a\x01\x02\x03\x04\x05\x06\x07\x08\x11\x12\x13\x14\x15\x16\x17\x0ak\n",
        ),
        (
            cancel(OWNER, TOKEN, "k"),
            b"C\x01\x02\x03\x04\x05\x06\x07\x08\x11\x12\x13\x14\x15\x16\x17\x0ak\n",
        ),
        (query(OWNER, "k"), b"Q\x01\x02\x03\x04\x05\x06\x07\x08k\n"),
        (ping(OWNER), b"P\x01\x02\x03\x04\x05\x06\x07\x08\n"),
        (
            hello(1, 0x0203, OWNER, "n:s"),
            b"H\x01\x01\x02\x03\x01\x02\x03\x04\x05\x06\x07\x08n:s\n",
        ),
    ];
    for (written, documented) in cases {
        assert_eq!(written, documented);
    }
}

#[test]
fn replies_are_read_from_the_documented_bytes() {
    let owner = 0x0102_0304_0506_070a;
    let cases: [(&[u8], Reply); 11] = [
        (
            b"A\x01\x02\x03\x04\x05\x06\x07\x0a\0\0\0\0\0\0\x01\x0a\0\0\x02\x0a\n",
            Reply::Acquired {
                owner,
                token: 266,
                waited_ms: 522,
            },
        ),
        (b"T\x01\x02\x03\x04\x05\x06\x07\x0a\n", Reply::TimedOut(owner)),
        (b"B\x01\x02\x03\x04\x05\x06\x07\x0a\n", Reply::Busy(owner)),
        (b"R\x01\x02\x03\x04\x05\x06\x07\x0a\n", Reply::Released(owner)),
        (
            b"X\x01\x02\x03\x04\x05\x06\x07\x0a\0\0\x0a\0\n",
            Reply::Extended {
                owner,
                remaining_ms: 2560,
            },
        ),
        (b"N\x01\x02\x03\x04\x05\x06\x07\x0a\n", Reply::NotHeld(owner)),
        (
            b"Q\x01\x02\x03\x04\x05\x06\x07\x0a\x01\0\0\0\x0a\0\0\0\x02\n",
            Reply::State {
                owner,
                held: true,
                remaining_ms: 10,
                waiters: 2,
            },
        ),
        (
            b"C\x01\x02\x03\x04\x05\x06\x07\x0a\x01\n",
            Reply::CancelDone {
                owner,
                cancelled: true,
            },
        ),
        (b"P\x01\x02\x03\x04\x05\x06\x07\x0a\n", Reply::Pong(owner)),
        (
            b"H\x01\x02\x03\x04\x05\x06\x07\x0a\x01\x01\0\x02\0\x01\x08\x07\x06\x05\x04\x03\x02\x01\x04\0\0\x03\xe4\x18\n",
            Reply::Welcome(Welcome {
                owner,
                version: 1,
                flags: 1,
                loops: 2,
                loop_index: 1,
                routing_seed: 0x0807_0605_0403_0201,
                max_key_bytes: 1024,
                max_lease_ms: 255_000,
            }),
        ),
        (
            b"E\x01\x02\x03\x04\x05\x06\x07\x0a\x09\n",
            Reply::Error { owner, code: 9 },
        ),
    ];
    for (bytes, reply) in cases {
        for end in 0..bytes.len() {
            assert_eq!(Reply::read(&bytes[..end]), None);
        }
        assert_eq!(Reply::read(bytes), Some((reply, bytes.len())));
        let followed = [bytes, b"T"].concat();
        assert_eq!(Reply::read(&followed), Some((reply, bytes.len())));
    }
}

#[test]
#[should_panic(expected = "no newline ends")]
fn a_reply_without_its_newline_is_refused() {
    Reply::read(b"T\0\0\0\0\0\0\0\x01x");
}

#[test]
#[should_panic(expected = "stands where 0 or 1 must")]
fn a_flag_that_is_no_flag_is_refused() {
    Reply::read(b"C\0\0\0\0\0\0\0\x01\x02\n");
}
