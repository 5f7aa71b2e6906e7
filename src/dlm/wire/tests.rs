use super::*;
use proptest::prelude::*;

const LIMIT: usize = 10 * 1024 * 1024;

fn coded(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    encode(text, &mut out);
    out
}

/// What comes of `received`, pushed in pieces that end at `cuts`.
fn outcome(received: &[u8], cuts: &[usize], limit: usize) -> (Progress, bool, Vec<u8>) {
    let mut decoder = Decoder::new(limit);
    let mut start = 0;
    for &end in cuts.iter().chain([&received.len()]) {
        decoder.push(&received[start..end]);
        start = end;
    }
    let progress = decoder.push(b"");
    (progress, decoder.is_refused(), decoder.text().to_vec())
}

fn whole(received: &[u8]) -> (Progress, Vec<u8>) {
    let (progress, refused, text) = outcome(received, &[], LIMIT);
    assert_eq!(
        progress == Progress::Refused,
        refused && progress != Progress::Pending
    );
    (progress, text)
}

#[test]
fn each_byte_is_its_two_letters() {
    // The letters at b / 78 and b % 78, counted by hand: 255 is 3 * 78 + 21.
    assert_eq!(coded(b"\x00"), b"11");
    assert_eq!(coded(b"\x4d"), b"1Z");
    assert_eq!(coded(b"\x4e"), b"a1");
    assert_eq!(coded(b"\xff"), b"28");
    for byte in 0..=255_u8 {
        let pair = coded(&[byte]);
        let index = |letter| {
            let at = ALPHABET.iter().position(|&other| other == letter);
            at.expect("a letter of the alphabet")
        };
        assert_eq!(index(pair[0]) * 78 + index(pair[1]), usize::from(byte));
    }
}

#[test]
fn encoding_appends() {
    let mut out = b"x".to_vec();
    encode(b"\x00\xff", &mut out);
    assert_eq!(out, b"x1128");
}

#[test]
fn white_space_around_the_line_is_ignored() {
    let object = coded(b"{\"a\":1}");
    for (before, after) in [
        ("", "\n"),
        ("", "\r\n"),
        (" \t\r\x0c", "\n"),
        ("", " \t\r \n"),
        ("  ", "\r\nZZ"),
        ("", "\n\n"),
    ] {
        let received = [before.as_bytes(), &object, after.as_bytes()].concat();
        let expected = (Progress::Complete, b"{\"a\":1}".to_vec());
        assert_eq!(whole(&received), expected, "{before:?} {after:?}");
    }
    // White space that is encoded belongs to the text; before the brace it is dropped.
    let received = [coded(b" \t\r\n{ }\n"), b"\n".to_vec()].concat();
    assert_eq!(whole(&received), (Progress::Complete, b"{ }\n".to_vec()));
}

#[test]
fn what_does_not_decode_is_refused_at_its_end() {
    let object = coded(b"{\"a\":1}");
    let half = &object[..object.len() - 1];
    for line in [
        &b""[..],
        b" \r",
        b"1",
        b"{\"a\":1}",
        b"\x00\x01\x02",
        b"\xff\xfe",
        b"Z1",
        &[&object[..], b"Z1"].concat(),
        // "28" is 255, "2h" would be 256.
        &[&object[..], b"2h"].concat(),
        half,
        &[half, b" "].concat(),
        &[half, b" ", &object[object.len() - 1..]].concat(),
        &[&object[..4], b" ", &object[4..]].concat(),
        &[&object[..5], b"\r", &object[5..]].concat(),
        &[&object[..], b" ", &object].concat(),
        &[&object[..], b"\x0b"].concat(),
        &[&object[..], b"\0"].concat(),
        &coded(b"[]"),
        &coded(b"5"),
        &coded(b"null"),
        &coded(b" \n "),
        &coded(b"\xef\xbb\xbf{}"),
        &[&coded(b" ")[..], b" ", &object].concat(),
    ] {
        assert_ne!(whole(line).0, Progress::Complete, "{line:?}");
        let received = [line, b"\n"].concat();
        assert_eq!(
            whole(&received),
            (Progress::Refused, Vec::new()),
            "{line:?}"
        );
    }
}

#[test]
fn a_line_without_its_newline_stays_pending() {
    for line in [
        coded(b"{}"),
        b"".to_vec(),
        b"garbage".to_vec(),
        vec![0xff; 100],
    ] {
        assert_eq!(whole(&line), (Progress::Pending, Vec::new()));
    }
}

#[test]
fn what_follows_the_newline_is_ignored() {
    let first = [coded(b"{\"a\":1}"), b"\n".to_vec()].concat();
    let second = [coded(b"{\"a\":2}"), b"\n".to_vec()].concat();
    let mut decoder = Decoder::new(first.len());
    assert_eq!(
        decoder.push(&[&first[..], &second].concat()),
        Progress::Complete
    );
    assert_eq!(decoder.push(&second), Progress::Complete);
    assert_eq!(decoder.text(), b"{\"a\":1}");

    let mut decoder = Decoder::new(LIMIT);
    assert_eq!(decoder.push(b"bad\n"), Progress::Refused);
    assert_eq!(decoder.push(&first), Progress::Refused);
    assert_eq!(decoder.text(), b"");
}

#[test]
fn the_limit_counts_encoded_bytes_without_the_newline() {
    let line = [b" ".to_vec(), coded(b"{\"a\":1}"), b"\r\n".to_vec()].concat();
    let limit = line.len() - 1;
    assert_eq!(outcome(&line, &[], limit).0, Progress::Complete);
    assert_eq!(outcome(&line, &[], limit - 1).0, Progress::Refused);
    // At once, not at the newline; also white space counts.
    let mut decoder = Decoder::new(limit);
    assert_eq!(decoder.push(&vec![b' '; limit]), Progress::Pending);
    assert_eq!(decoder.push(b"\r"), Progress::Refused);
    // Bytes after the newline do not count.
    let more = [&line[..], &vec![b'1'; 2 * limit]].concat();
    assert_eq!(outcome(&more, &[], limit).0, Progress::Complete);
}

#[test]
fn a_line_known_to_be_refused_is_not_kept() {
    let long = coded(&vec![b'x'; 512 * 1024]);
    for start in [
        coded(b"{\"DataStore\":\""),
        coded(b"[\""),
        coded(b"  5"),
        b"GET / HTTP/1.1\r".to_vec(),
    ] {
        let mut decoder = Decoder::new(LIMIT);
        decoder.push(&start);
        decoder.push(&long);
        decoder.push(b"\xff");
        assert!(decoder.is_refused());
        assert_eq!(decoder.buffer_bytes(), 0);
        for _ in 0..8 {
            assert_eq!(decoder.push(&long), Progress::Pending);
            assert_eq!(decoder.buffer_bytes(), 0);
        }
        assert_eq!(decoder.push(b"\n"), Progress::Refused);
    }
    // Known from the first bytes of a long piece: little of it is ever decoded.
    let mut decoder = Decoder::new(LIMIT);
    decoder.push(&[coded(b"[").as_slice(), &long].concat());
    assert!(decoder.is_refused());
    assert_eq!(decoder.buffer_bytes(), 0);
}

#[test]
fn encoded_white_space_before_the_object_takes_no_memory() {
    let spaces = coded(&[b' '; 8 * 1024]);
    let mut decoder = Decoder::new(LIMIT);
    for _ in 0..100 {
        decoder.push(&spaces);
        assert!(decoder.buffer_bytes() <= BLOCK_BYTES);
    }
    decoder.push(&coded(b"{}"));
    assert_eq!(decoder.push(b"\n"), Progress::Complete);
    assert_eq!(decoder.text(), b"{}");
}

#[test]
fn a_line_at_the_limit_takes_half_of_it() {
    let mut text = vec![b'x'; LIMIT / 2];
    text[0] = b'{';
    let line = coded(&text);
    let mut decoder = Decoder::new(LIMIT);
    for piece in line.chunks(60_000) {
        assert_eq!(decoder.push(piece), Progress::Pending);
        assert!(decoder.buffer_bytes() <= LIMIT / 2 + BLOCK_BYTES);
    }
    assert_eq!(decoder.push(b"\n"), Progress::Complete);
    assert!(decoder.text() == text);
}

/// Lines of every kind: objects, half pairs, white space anywhere, plain bytes.
fn any_line() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        4 => any::<Vec<u8>>().prop_map(|text| coded(&text)),
        2 => Just(coded(b"{")),
        1 => "[ \t\r\n\x0c]{0,3}".prop_map(String::into_bytes),
        1 => prop::collection::vec(any::<u8>(), 0..3),
        1 => prop::sample::subsequence(ALPHABET.to_vec(), 1),
    ];
    prop::collection::vec(piece, 0..6).prop_map(|pieces| pieces.concat())
}

#[test]
fn only_whole_pairs_of_bytes_are_a_code() {
    assert_eq!(decode(b""), Some(Vec::new()));
    assert_eq!(decode(b"1128"), Some(vec![0, 255]));
    for coded in [
        "1", "112", "2h", "Z1", "1 ", " 11", "11\n", "1\n", "\"\"", "éé",
    ] {
        assert_eq!(decode(coded.as_bytes()), None, "{coded:?}");
    }
}

proptest! {
    #[test]
    fn a_code_decodes_to_what_was_encoded(bytes in any::<Vec<u8>>()) {
        prop_assert_eq!(decode(&coded(&bytes)), Some(bytes));
    }

    #[test]
    fn what_is_encoded_decodes(rest in any::<Vec<u8>>()) {
        let text = [b"{", &rest[..]].concat();
        let line = [coded(&text), b"\n".to_vec()].concat();
        prop_assert_eq!(whole(&line), (Progress::Complete, text));
    }

    #[test]
    fn pieces_make_no_difference(
        line in any_line(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        limit in 0..200_usize,
    ) {
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(line.len() + 1)).collect();
        cuts.sort_unstable();
        for limit in [limit, LIMIT] {
            prop_assert_eq!(outcome(&line, &cuts, limit), outcome(&line, &[], limit));
        }
    }

    #[test]
    fn every_split_of_a_line_gives_the_same(line in any_line()) {
        let expected = outcome(&line, &[], LIMIT);
        for cut in 0..=line.len() {
            prop_assert_eq!(&outcome(&line, &[cut], LIMIT), &expected);
        }
        let every_byte: Vec<_> = (0..line.len()).collect();
        prop_assert_eq!(&outcome(&line, &every_byte, LIMIT), &expected);
    }
}
