//! Exact decimal numbers, as `Expire` and `MaxSize` carry them.
//!
//! A binary fraction would round a time before it is rounded up to its millisecond.

/// A decimal number: optional sign, fraction and exponent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Decimal<'a> {
    negative: bool,
    whole: &'a [u8],
    fraction: &'a [u8],
    exponent: i64,
}

impl<'a> Decimal<'a> {
    /// Reads all of `text`; `None` where it is no decimal number. Digits may be
    /// missing before or after the point, not on both sides.
    pub(super) fn parse(text: &'a str) -> Option<Decimal<'a>> {
        let (negative, rest) = sign(text.as_bytes());
        let (whole, rest) = digits(rest);
        let (fraction, rest) = match rest {
            [b'.', rest @ ..] => digits(rest),
            _ => (&[][..], rest),
        };
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let exponent = match rest {
            [] => 0,
            [b'e' | b'E', rest @ ..] => exponent(rest)?,
            _ => return None,
        };
        Some(Decimal {
            negative,
            whole,
            fraction,
            exponent,
        })
    }

    /// Whether it is greater than 0.
    pub(super) fn is_positive(&self) -> bool {
        !self.negative && self.digits().any(|digit| digit != b'0')
    }

    /// The number times 10 to `power`, rounded up; 0 for a negative one,
    /// `u64::MAX` where that is too small.
    pub(super) fn ceil_times_ten_to(&self, power: i64) -> u64 {
        let (floor, exact) = self.times_ten_to(power);
        floor.saturating_add(u64::from(!exact))
    }

    /// The number rounded down; 0 for a negative one, `u64::MAX` where that is too small.
    pub(super) fn floor(&self) -> u64 {
        self.times_ten_to(0).0
    }

    /// The number times 10 to `power`, rounded down, and whether that is exact.
    fn times_ten_to(&self, power: i64) -> (u64, bool) {
        if self.negative {
            return (0, true);
        }
        // Neither lengths of text nor exponents as `exponent` clamps them overflow this.
        let whole_digits = self.whole.len() as i64 + self.exponent + power;
        let whole_digits = usize::try_from(whole_digits).unwrap_or(0);

        let mut value: u64 = 0;
        for digit in self.digits().take(whole_digits) {
            let next = value
                .checked_mul(10)
                .and_then(|tens| tens.checked_add(u64::from(digit - b'0')));
            let Some(next) = next else {
                return (u64::MAX, true);
            };
            value = next;
        }
        let mut zeros = whole_digits.saturating_sub(self.whole.len() + self.fraction.len());
        while value != 0 && zeros != 0 {
            let Some(next) = value.checked_mul(10) else {
                return (u64::MAX, true);
            };
            value = next;
            zeros -= 1;
        }
        (
            value,
            self.digits().skip(whole_digits).all(|digit| digit == b'0'),
        )
    }

    fn digits(&self) -> impl Iterator<Item = u8> + use<'a> {
        self.whole.iter().chain(self.fraction).copied()
    }
}

fn sign(text: &[u8]) -> (bool, &[u8]) {
    match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    }
}

fn digits(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text.iter().position(|byte| !byte.is_ascii_digit());
    text.split_at(end.unwrap_or(text.len()))
}

/// Beyond what any text's digits can make up for.
const MAX_EXPONENT: i64 = i64::MAX / 4;

fn exponent(text: &[u8]) -> Option<i64> {
    let (negative, rest) = sign(text);
    let (digits, rest) = digits(rest);
    if digits.is_empty() || !rest.is_empty() {
        return None;
    }
    let size = digits.iter().fold(0_i64, |size, digit| {
        size.saturating_mul(10)
            .saturating_add(i64::from(digit - b'0'))
            .min(MAX_EXPONENT)
    });
    Some(if negative { -size } else { size })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ceil_ms(text: &str) -> Option<u64> {
        Decimal::parse(text).map(|decimal| decimal.ceil_times_ten_to(3))
    }

    #[test]
    fn seconds_round_up_to_the_millisecond_exactly() {
        for (text, ms) in [
            ("30", 30_000),
            ("0.5", 500),
            ("0.001", 1),
            ("0.0011", 2),
            ("0.0010000000000000000000000000000000000000001", 2),
            ("0.001000", 1),
            // Each of these is a little more or less than its decimal as a binary fraction.
            ("0.003", 3),
            ("4.035", 4_035),
            ("1.001", 1_001),
            ("9007199254740993", 9_007_199_254_740_993_000),
            ("1e-400", 1),
            ("1e-9999999999999999999999", 1),
            ("0e9999999999999999999999", 0),
            ("0", 0),
            ("-0", 0),
            ("-5", 0),
            ("-0.0001", 0),
            ("+7", 7_000),
            (".25", 250),
            ("25.", 25_000),
            ("3e1", 30_000),
            ("3E+1", 30_000),
            ("3000e-2", 30_000),
            ("0003", 3_000),
            ("18446744073709551.615", u64::MAX),
            ("18446744073709551.614", u64::MAX - 1),
            ("18446744073709551.616", u64::MAX),
            ("1e400", u64::MAX),
            ("1e9999999999999999999999", u64::MAX),
        ] {
            assert_eq!(ceil_ms(text), Some(ms), "{text}");
        }
    }

    #[test]
    fn long_digit_strings_and_exponents_cancel_out() {
        let tiny = format!("0.{}1e1000001", "0".repeat(1_000_000));
        assert_eq!(ceil_ms(&tiny), Some(1_000));
        let huge = format!("1{}e-1000000", "0".repeat(1_000_000));
        assert_eq!(ceil_ms(&huge), Some(1_000));
        let above = format!("1{}1e-1000001", "0".repeat(1_000_000));
        assert_eq!(ceil_ms(&above), Some(1_001));
    }

    #[test]
    fn only_decimal_numbers_parse() {
        for text in [
            "", " ", ".", "-", "+", "e5", ".e5", "1e", "1e+", "--1", "+-1", "1 ", " 1", "1_000",
            "1,5", "0x10", "nan", "NaN", "inf", "Infinity", "-inf", "1e5.0", "1.2.3", "٣", "1s",
        ] {
            assert!(Decimal::parse(text).is_none(), "{text:?}");
        }
    }

    #[test]
    fn positive_means_greater_than_zero() {
        for (text, positive) in [
            ("1", true),
            ("1e-400", true),
            ("0.000", false),
            ("0e5", false),
            ("-1", false),
            ("-0", false),
        ] {
            let decimal = Decimal::parse(text).expect("a decimal number");
            assert_eq!(decimal.is_positive(), positive, "{text}");
        }
    }

    #[test]
    fn floor_rounds_down() {
        for (text, floor) in [
            ("100.9", 100),
            ("1e6", 1_000_000),
            ("-3", 0),
            ("0.99", 0),
            ("1e30", u64::MAX),
        ] {
            let decimal = Decimal::parse(text).expect("a decimal number");
            assert_eq!(decimal.floor(), floor, "{text}");
        }
    }
}
