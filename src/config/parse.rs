//! From a flag's text to its value: small pure functions, each refusing what the
//! server could not honour. The command-line parser puts the flag's name before
//! their messages.

use super::Listen;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// Longest path of a Unix socket, in bytes: `sun_path` less its closing NUL, unix(7).
const MAX_UNIX_PATH_BYTES: usize = 107;

/// What a bare number means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BareUnit {
    /// `5` is five seconds.
    Seconds,
    /// `5` is five milliseconds: the flag's name ends in `-ms`.
    Milliseconds,
}

/// The unsigned integers that settings are kept in.
pub trait Number: Copy + TryFrom<u64> + TryInto<u64> {}
impl<T: Copy + TryFrom<u64> + TryInto<u64>> Number for T {}

/// `5`, `5s`, `250ms` or `3m`, as milliseconds within `range_ms`.
///
/// # Errors
/// What is wrong with the text, for the person who typed it.
pub fn time_ms<T: Number>(
    text: &str,
    bare: BareUnit,
    range_ms: RangeInclusive<T>,
) -> Result<T, String> {
    const BAD: &str = "must be a time such as 5s, 250ms or 3m, in whole numbers";
    let (digits, unit) = split_unit(text);
    let ms_per_unit = match (unit, bare) {
        ("ms", _) | ("", BareUnit::Milliseconds) => 1,
        ("s", _) | ("", BareUnit::Seconds) => 1_000,
        ("m", _) => 60_000,
        _ => return Err(BAD.into()),
    };
    let number = whole(digits).ok_or(BAD)?;
    within(number.saturating_mul(ms_per_unit), range_ms, show_ms)
}

/// A time that the kernel takes in whole seconds, as seconds within `range_s`.
///
/// # Errors
/// What is wrong with the text, for the person who typed it.
pub(super) fn time_s(text: &str, range_s: RangeInclusive<u32>) -> Result<u32, String> {
    let ms = time_ms(text, BareUnit::Seconds, 0..=u64::MAX)?;
    if !ms.is_multiple_of(1_000) {
        return Err("must be whole seconds, the kernel takes no parts of one".into());
    }
    within(ms / 1_000, range_s, |s| format!("{s}s"))
}

/// A plain number within `range`.
///
/// # Errors
/// What is wrong with the text, for the person who typed it.
pub(super) fn count<T: Number>(text: &str, range: RangeInclusive<T>) -> Result<T, String> {
    match split_unit(text) {
        (digits, "") => within(whole(digits).ok_or(BAD_COUNT)?, range, |n| n.to_string()),
        _ => Err(BAD_COUNT.into()),
    }
}

const BAD_COUNT: &str = "must be a whole number";

/// A file's permission bits, in octal as chmod(1) takes them.
///
/// # Errors
/// What is wrong with the text, for the person who typed it.
pub(super) fn mode(text: &str) -> Result<u32, String> {
    let octal = !text.is_empty() && text.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
    match u32::from_str_radix(text, 8) {
        Ok(mode) if octal && mode <= 0o777 => Ok(mode),
        _ => Err("must be permission bits in octal, at most 777".into()),
    }
}

/// A number of bytes within `range`: bare, or with KiB, MiB, GiB or TiB.
///
/// # Errors
/// What is wrong with the text, for the person who typed it.
pub(super) fn bytes<T: Number>(text: &str, range: RangeInclusive<T>) -> Result<T, String> {
    const BAD: &str = "must be a whole number of bytes, or of KiB, MiB, GiB or TiB (as in 512MiB)";
    let (digits, unit) = split_unit(text);
    let scale: u64 = match unit {
        "" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        _ => return Err(BAD.into()),
    };
    let number = whole(digits).ok_or(BAD)?;
    within(number.saturating_mul(scale), range, show_bytes)
}

/// `IP:PORT`, `unix:PATH` or `off` (`None`).
///
/// # Errors
/// What is wrong with the text, for the person who typed it.
pub(super) fn listen(text: &str) -> Result<Option<Listen>, String> {
    match text.strip_prefix("unix:") {
        Some(path) => unix_path(path).map(|path| Some(Listen::Unix(path))),
        None => tcp(text, "IP:PORT, unix:PATH or off").map(|address| address.map(Listen::Tcp)),
    }
}

/// `IP:PORT` or `off` (`None`).
///
/// # Errors
/// What is wrong with the text, for the person who typed it.
pub(super) fn tcp_listen(text: &str) -> Result<Option<SocketAddr>, String> {
    tcp(text, "IP:PORT or off")
}

fn tcp(text: &str, forms: &str) -> Result<Option<SocketAddr>, String> {
    if text == "off" {
        return Ok(None);
    }
    text.parse()
        .map(Some)
        .map_err(|_| format!("must be {forms} (as in 127.0.0.1:5327, [::1]:5327)"))
}

fn unix_path(path: &str) -> Result<PathBuf, String> {
    if path.is_empty() {
        return Err("unix: needs a path".into());
    }
    if path.len() > MAX_UNIX_PATH_BYTES {
        return Err(format!(
            "a Unix socket's path has at most {MAX_UNIX_PATH_BYTES} bytes, this has {}",
            path.len()
        ));
    }
    if path.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err("white space and control characters would break the ready line".into());
    }
    Ok(path.into())
}

/// The text before and from the first character that is no digit.
fn split_unit(text: &str) -> (&str, &str) {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    text.split_at(digits)
}

/// The number that `digits` spell; what no u64 holds becomes the largest one,
/// which is over every range.
fn whole(digits: &str) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    Some(digits.parse().unwrap_or(u64::MAX))
}

fn within<T: Number>(
    value: u64,
    range: RangeInclusive<T>,
    show: impl Fn(u64) -> String,
) -> Result<T, String> {
    let bound = |number: T| number.try_into().unwrap_or(u64::MAX);
    let (least, most) = (bound(*range.start()), bound(*range.end()));
    T::try_from(value)
        .ok()
        .filter(|_| (least..=most).contains(&value))
        .ok_or_else(|| format!("must be between {} and {}", show(least), show(most)))
}

/// Milliseconds in the largest unit that shows them exactly.
pub(super) fn show_ms(ms: u64) -> String {
    match ms {
        0 => "0".into(),
        _ if ms.is_multiple_of(60_000) => format!("{}m", ms / 60_000),
        _ if ms.is_multiple_of(1_000) => format!("{}s", ms / 1_000),
        _ => format!("{ms}ms"),
    }
}

/// Bytes in the largest unit that shows them exactly.
pub(super) fn show_bytes(bytes: u64) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    units
        .iter()
        .find(|(_, shift)| bytes != 0 && bytes.is_multiple_of(1 << shift))
        .map_or(bytes.to_string(), |(unit, shift)| {
            format!("{}{unit}", bytes >> shift)
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use BareUnit::{Milliseconds, Seconds};

    #[test]
    fn times() {
        let range = 1..=255_000u32;
        for (text, bare, expected) in [
            ("5", Seconds, Some(5_000)),
            ("5s", Seconds, Some(5_000)),
            ("250ms", Seconds, Some(250)),
            ("3m", Seconds, Some(180_000)),
            ("5", Milliseconds, Some(5)),
            ("5s", Milliseconds, Some(5_000)),
            ("007s", Seconds, Some(7_000)),
            ("255", Seconds, Some(255_000)),
            ("1ms", Seconds, Some(1)),
            ("256", Seconds, None),
            ("255001ms", Seconds, None),
            ("5m", Seconds, None),
            ("0", Seconds, None),
            ("0ms", Milliseconds, None),
            ("", Seconds, None),
            ("s", Seconds, None),
            ("-1", Seconds, None),
            ("+1", Seconds, None),
            ("1.5s", Seconds, None),
            ("0.5", Seconds, None),
            ("500us", Seconds, None),
            ("1S", Seconds, None),
            ("1 s", Seconds, None),
            (" 1s", Seconds, None),
            ("1s ", Seconds, None),
            ("1h", Seconds, None),
            ("1e3", Seconds, None),
            ("١", Seconds, None),
            ("18446744073709551615", Seconds, None),
            ("18446744073709551616", Seconds, None),
            ("99999999999999999999999999ms", Seconds, None),
            ("307445734561825861m", Seconds, None),
        ] {
            assert_eq!(
                time_ms(text, bare, range.clone()).ok(),
                expected,
                "{text:?} with bare {bare:?}"
            );
        }
    }

    #[test]
    fn a_refused_time_is_told_the_bounds() {
        assert_eq!(
            time_ms("256", Seconds, 1..=255_000u32),
            Err("must be between 1ms and 255s".into())
        );
        assert_eq!(
            time_ms("1h", Seconds, 1..=255_000u32),
            Err("must be a time such as 5s, 250ms or 3m, in whole numbers".into())
        );
    }

    #[test]
    fn whole_seconds() {
        for (text, expected) in [
            ("15", Some(15)),
            ("15s", Some(15)),
            ("2m", Some(120)),
            ("3000ms", Some(3)),
            ("1500ms", None),
            ("0", None),
            ("201", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(time_s(text, 1..=200).ok(), expected, "{text:?}");
        }
    }

    #[test]
    fn modes() {
        for (text, expected) in [
            ("660", Some(0o660)),
            ("0600", Some(0o600)),
            ("0", Some(0)),
            ("777", Some(0o777)),
            ("1777", None),
            ("668", None),
            ("+660", None),
            ("rw", None),
            ("", None),
        ] {
            assert_eq!(mode(text).ok(), expected, "{text:?}");
        }
    }

    #[test]
    fn counts() {
        for (text, expected) in [
            ("1", Some(1u32)),
            ("1000", Some(1000)),
            ("0", None),
            ("1001", None),
            ("4294967297", None),
            ("18446744073709551617", None),
            ("-1", None),
            ("+1", None),
            ("1k", None),
            ("1.0", None),
            ("0x10", None),
            ("1_000", None),
            ("", None),
        ] {
            assert_eq!(count(text, 1..=1000u32).ok(), expected, "{text:?}");
        }
    }

    #[test]
    fn byte_sizes() {
        for (text, expected) in [
            ("4096", Some(4096u64)),
            ("4KiB", Some(4096)),
            ("1MiB", Some(1 << 20)),
            ("3GiB", Some(3 << 30)),
            ("1TiB", Some(1 << 40)),
            ("2TiB", None),
            ("4095", None),
            ("0", None),
            ("4K", None),
            ("4KB", None),
            ("4kib", None),
            ("4 KiB", None),
            ("1.5MiB", None),
            ("-4KiB", None),
            ("KiB", None),
            ("", None),
            ("18446744073709551616", None),
            ("16777217TiB", None),
        ] {
            assert_eq!(bytes(text, 4096..=1u64 << 40).ok(), expected, "{text:?}");
        }
        assert_eq!(
            bytes("1", 4096..=5000u64),
            Err("must be between 4KiB and 5000".into())
        );
    }

    #[test]
    fn listen_addresses() {
        let tcp = |text: &str| Some(Listen::Tcp(text.parse().expect("an address")));
        let unix = |path: &str| Some(Listen::Unix(path.into()));
        let longest = format!("/{}", "x".repeat(106));
        for (text, expected) in [
            ("127.0.0.1:5327", Ok(tcp("127.0.0.1:5327"))),
            ("0.0.0.0:0", Ok(tcp("0.0.0.0:0"))),
            ("[::1]:80", Ok(tcp("[::1]:80"))),
            ("off", Ok(None)),
            ("unix:/run/x.sock", Ok(unix("/run/x.sock"))),
            ("unix:x", Ok(unix("x"))),
            (&format!("unix:{longest}"), Ok(unix(&longest))),
            (&format!("unix:{longest}x"), Err(())),
            ("unix:", Err(())),
            ("unix:/a b", Err(())),
            ("unix:/a\nb", Err(())),
            ("unix:/a\0b", Err(())),
            ("localhost:5327", Err(())),
            ("127.0.0.1", Err(())),
            ("127.0.0.1:65536", Err(())),
            (":5327", Err(())),
            ("5327", Err(())),
            ("OFF", Err(())),
            ("", Err(())),
        ] {
            assert_eq!(listen(text).map_err(drop), expected, "{text:?}");
        }
        assert!(tcp_listen("unix:/run/x.sock").is_err());
        assert_eq!(tcp_listen("off"), Ok(None));
    }
}
