//! Times as people write them: `5`, `5s`, `250ms`, `80us`, `3m`.

use std::time::Duration;

/// Reads a time; a bare number is seconds.
///
/// # Errors
/// What it should look like.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let bad = || format!("{text:?} is no time such as 5, 5s, 250ms, 80us or 3m");
    let unit_at = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.'))
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let number: f64 = number.parse().map_err(|_| bad())?;
    let seconds = match unit {
        "" | "s" => number,
        "ms" => number / 1e3,
        "us" => number / 1e6,
        "m" => number * 60.0,
        _ => return Err(bad()),
    };
    Duration::try_from_secs_f64(seconds).map_err(|_| bad())
}

/// The time in milliseconds, as the wire carries it.
///
/// # Errors
/// It is no whole number of them, or too many.
pub(crate) fn whole_millis(time: Duration) -> Result<u32, String> {
    let whole = u32::try_from(time.as_millis()).ok();
    whole
        .filter(|whole| Duration::from_millis((*whole).into()) == time)
        .ok_or_else(|| "must be whole milliseconds, 49 days at most".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_and_fractions_are_read() {
        for (text, millis) in [
            ("5", 5_000),
            ("0.5", 500),
            ("5s", 5_000),
            ("250ms", 250),
            ("3m", 180_000),
        ] {
            let time = parse(text).expect(text);
            assert_eq!(whole_millis(time), Ok(millis), "{text}");
        }
        assert_eq!(parse("80us"), Ok(Duration::from_micros(80)));
        assert!(whole_millis(Duration::from_micros(80)).is_err());
        assert!(whole_millis(Duration::from_secs(5_000_000)).is_err());
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "",
            "s",
            "-1",
            "1h",
            "1 s",
            "1e3",
            "99999999999999999999999999m",
            "1.2.3",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
