//! The 78-letter wire code: each byte becomes two characters, a newline ends the line.

use memchr::memchr;

/// Appends the code of `bytes` to `out`, twice as long.
pub fn encode(bytes: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + 2 * bytes.len(), 0);
    for (pair, &byte) in out[start..].chunks_exact_mut(2).zip(bytes) {
        pair.copy_from_slice(&PAIRS[usize::from(byte)]);
    }
}

/// What `coded` is the code of, `None` where it is no code: a letter that does not
/// belong to it, white space, or half a pair.
pub fn decode(coded: &[u8]) -> Option<Vec<u8>> {
    let (pairs, half) = coded.as_chunks();
    let mut bytes = Vec::new();
    (decode_pairs(pairs, &mut bytes) && half.is_empty()).then_some(bytes)
}

/// What [`Decoder::push`] has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The line has not ended: push what comes next.
    Pending,
    /// The line has ended and its text starts like a JSON object: [`Decoder::text`].
    Complete,
    /// The line has ended or is over the limit, and no JSON object can come of it.
    Refused,
}

/// Decodes one line as it is received, whatever pieces it comes in.
///
/// Only decoded text is kept, and nothing of a line that cannot become a JSON
/// object ([`Decoder::is_refused`]). White space around the line is ignored,
/// within it does not decode. What follows the newline is ignored.
#[derive(Debug)]
pub struct Decoder {
    text: Vec<u8>,
    /// A pair's first character, its second not here yet.
    pending: Option<u8>,
    phase: Phase,
    progress: Progress,
    received_bytes: usize,
    max_payload_bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// White space, and no pair yet.
    Start,
    /// Pairs that mean white space.
    BeforeObject,
    /// The object's brace and what follows it; `text` starts with it.
    Object,
    /// White space that only the newline may follow.
    AfterObject,
    /// Never a JSON object; `text` is given back.
    Refused,
}

/// Bytes decoded in one go: a line's first fault is noticed before room is taken
/// for more than this.
const BLOCK_BYTES: usize = 4096;

impl Decoder {
    /// A decoder for a line of at most `max_payload_bytes` encoded bytes, the
    /// newline not counted.
    pub fn new(max_payload_bytes: usize) -> Decoder {
        Decoder {
            text: Vec::new(),
            pending: None,
            phase: Phase::Start,
            progress: Progress::Pending,
            received_bytes: 0,
            max_payload_bytes,
        }
    }

    /// Takes the next received bytes. Once the outcome is [`Progress::Complete`]
    /// or [`Progress::Refused`] it stays, and further bytes are ignored.
    pub fn push(&mut self, received: &[u8]) -> Progress {
        if self.progress != Progress::Pending {
            return self.progress;
        }
        let (line, ended) = match memchr(b'\n', received) {
            Some(at) => (&received[..at], true),
            None => (received, false),
        };
        if line.len() > self.max_payload_bytes - self.received_bytes {
            self.refuse();
            self.progress = Progress::Refused;
            return self.progress;
        }
        self.received_bytes += line.len();
        for block in line.chunks(BLOCK_BYTES) {
            self.take(block);
        }
        if ended {
            self.end_line();
        }
        self.progress
    }

    /// The decoded line, `{` its first byte; empty unless [`Progress::Complete`].
    pub fn text(&self) -> &[u8] {
        match self.progress {
            Progress::Complete => &self.text,
            Progress::Pending | Progress::Refused => &[],
        }
    }

    /// Whether it is known that no JSON object can come of this line, though it
    /// may not have ended. [`Decoder::push`] then keeps nothing, it only looks for
    /// the line's end and counts towards the limit.
    pub fn is_refused(&self) -> bool {
        self.phase == Phase::Refused
    }

    /// Bytes of memory held for the line.
    pub fn buffer_bytes(&self) -> usize {
        self.text.capacity()
    }

    fn take(&mut self, block: &[u8]) {
        let block = match self.phase {
            Phase::Start => block.trim_ascii_start(),
            Phase::BeforeObject | Phase::Object | Phase::AfterObject => block,
            Phase::Refused => return,
        };
        let pairs = block.trim_ascii_end();
        if !pairs.is_empty() {
            self.take_pairs(pairs);
        }
        if pairs.len() < block.len() {
            self.take_white_space();
        }
    }

    fn take_pairs(&mut self, pairs: &[u8]) {
        match self.phase {
            Phase::Start => self.phase = Phase::BeforeObject,
            Phase::BeforeObject | Phase::Object => {}
            Phase::AfterObject | Phase::Refused => return self.refuse(),
        }
        self.make_room(pairs.len() / 2 + 1);
        let mut rest = pairs;
        let mut good = true;
        if let Some(high) = self.pending.take() {
            good &= decode_pairs(&[[high, pairs[0]]], &mut self.text);
            rest = &pairs[1..];
        }
        let (whole, half) = rest.as_chunks();
        good &= decode_pairs(whole, &mut self.text);
        if let [high] = half {
            good &= HIGH[usize::from(*high)] < NO_BYTE;
            self.pending = Some(*high);
        }
        if !good {
            return self.refuse();
        }
        if self.phase == Phase::BeforeObject {
            self.look_for_object();
        }
    }

    fn take_white_space(&mut self) {
        match self.phase {
            Phase::Object if self.pending.is_none() => self.phase = Phase::AfterObject,
            Phase::AfterObject | Phase::Refused => {}
            Phase::Start | Phase::BeforeObject | Phase::Object => self.refuse(),
        }
    }

    /// Drops decoded white space, so that a line of nothing else takes no memory.
    fn look_for_object(&mut self) {
        let is_json_space = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
        match self.text.iter().position(|byte| !is_json_space(byte)) {
            None => self.text.clear(),
            Some(at) if self.text[at] == b'{' => {
                self.text.drain(..at);
                self.phase = Phase::Object;
            }
            Some(_) => self.refuse(),
        }
    }

    fn end_line(&mut self) {
        match self.phase {
            Phase::Object | Phase::AfterObject if self.pending.is_none() => {
                self.progress = Progress::Complete;
            }
            _ => {
                self.refuse();
                self.progress = Progress::Refused;
            }
        }
    }

    fn refuse(&mut self) {
        self.phase = Phase::Refused;
        self.text = Vec::new();
        self.pending = None;
    }

    /// Makes room for `additional` bytes more: doubled, but little beyond what the
    /// longest line decodes to.
    fn make_room(&mut self, additional: usize) {
        let needed = self.text.len() + additional;
        if needed > self.text.capacity() {
            let longest = self.max_payload_bytes / 2 + 1;
            let capacity = needed.max(longest.min(2 * self.text.capacity()));
            self.text.reserve_exact(capacity - self.text.len());
        }
    }
}

const ALPHABET: &[u8; 78] =
    b"1aA2bB3cC4dD5eE6fF7gG8hH9iI0jJ!kK@lL#mM$nN%oO^pP&qQ*rR(sS)tT/uU?vV=wW+xX;yY:zZ";

/// The two characters of each byte.
const PAIRS: [[u8; 2]; 256] = {
    let mut pairs = [[0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        pairs[byte] = [
            ALPHABET[byte / ALPHABET.len()],
            ALPHABET[byte % ALPHABET.len()],
        ];
        byte += 1;
    }
    pairs
};

/// Appends what the pairs decode to; where this is false, nothing that can be used.
fn decode_pairs(pairs: &[[u8; 2]], bytes: &mut Vec<u8>) -> bool {
    // Every byte's bits are below NO_BYTE, so they are all together.
    let mut union = 0;
    let start = bytes.len();
    bytes.resize(start + pairs.len(), 0);
    for (byte, [high, low]) in bytes[start..].iter_mut().zip(pairs) {
        let value = HIGH[usize::from(*high)] + LOW[usize::from(*low)];
        union |= value;
        *byte = value as u8;
    }
    union < NO_BYTE
}

/// What a pair's first character adds to its value, or [`NO_LETTER`].
const HIGH: [u16; 256] = letter_values(ALPHABET.len());

/// What a pair's second character adds to its value, or [`NO_LETTER`].
const LOW: [u16; 256] = letter_values(1);

/// The least value that is no byte.
const NO_BYTE: u16 = 256;

/// No byte either, whatever is added; two of them can be.
const NO_LETTER: u16 = 0x4000;

const fn letter_values(weight: usize) -> [u16; 256] {
    let mut values = [NO_LETTER; 256];
    let mut index = 0;
    while index < ALPHABET.len() {
        values[ALPHABET[index] as usize] = (index * weight) as u16;
        index += 1;
    }
    values
}

#[cfg(test)]
mod tests;
