//! Mixes of activities, from a small TOML file, and the settings of one activity.

use super::{Activity, Close, Hold, KeyId, Kind};
use crate::times;
use serde::Deserialize;
use std::path::Path;
use std::time::Duration;

/// What is said about one activity; the rest has defaults that depend on the kind.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {
    /// What to do.
    pub(crate) kind: Kind,
    /// How often it is chosen, against the others.
    pub(crate) weight: Option<u32>,
    /// Number of keys.
    pub(crate) keys: Option<u64>,
    /// Exponent of a Zipf distribution.
    pub(crate) zipf: Option<f64>,
    /// Longest wait for a grant.
    pub(crate) wait: Option<String>,
    /// Lease.
    pub(crate) lease: Option<String>,
    /// How long a grant is held.
    pub(crate) hold: Option<String>,
    /// Size of stored data.
    pub(crate) data_bytes: Option<usize>,
    /// How churned connections end.
    pub(crate) close: Option<Close>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MixFile {
    activity: Vec<Settings>,
}

/// Activities are told apart by a byte of the key, the last of which is taken.
const MAX_ACTIVITIES: usize = 255;

/// Reads a mix.
///
/// # Errors
/// One line that names the file and what is wrong with it.
pub(crate) fn read_mix(path: &Path) -> Result<Vec<Activity>, String> {
    let named = |what: String| format!("--mix {}: {what}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| named(error.to_string()))?;
    parse_mix(&text).map_err(named)
}

fn parse_mix(text: &str) -> Result<Vec<Activity>, String> {
    let file: MixFile = toml::from_str(text).map_err(|error| {
        let line = error.span().map(|span| {
            let before = text.get(..span.start).unwrap_or_default();
            before.lines().count().max(1)
        });
        let what = error.message().replace('\n', " ");
        match line {
            Some(line) => format!("line {line}: {what}"),
            None => what,
        }
    })?;
    if file.activity.is_empty() || file.activity.len() > MAX_ACTIVITIES {
        return Err(format!("takes 1 to {MAX_ACTIVITIES} [[activity]] tables"));
    }
    file.activity
        .into_iter()
        .enumerate()
        .map(|(index, settings)| {
            let built = settings.into_activity(ToOwned::to_owned);
            built.map_err(|what| format!("activity {}: {what}", index + 1))
        })
        .collect()
}

impl Settings {
    /// Nothing said but the kind.
    pub(crate) fn of(kind: Kind) -> Settings {
        Settings {
            kind,
            weight: None,
            keys: None,
            zipf: None,
            wait: None,
            lease: None,
            hold: None,
            data_bytes: None,
            close: None,
        }
    }

    /// The activity, checked; `shown` makes of a field's name what the user wrote.
    ///
    /// # Errors
    /// What is wrong with which field.
    pub(crate) fn into_activity(self, shown: impl Fn(&str) -> String) -> Result<Activity, String> {
        let kind = self.kind;
        let bad = |field: &str, what: &str| Err(format!("{}: {what}", shown(field)));
        let millis = |field: &str, text: Option<String>, default_ms: u32| match text {
            None => Ok(default_ms),
            Some(text) => times::parse(&text)
                .and_then(times::whole_millis)
                .map_err(|what| format!("{}: {what}", shown(field))),
        };
        let wait_ms = millis("wait", self.wait, if kind.waits() { 10_000 } else { 0 })?;
        let lease_ms = millis("lease", self.lease, kind.default_lease_ms())?;
        let hold = match self.hold {
            None => Hold::default(),
            Some(text) => parse_hold(&text).map_err(|what| format!("{}: {what}", shown("hold")))?,
        };
        let activity = Activity {
            kind,
            weight: self.weight.unwrap_or(1),
            keys: self.keys.unwrap_or(kind.default_keys()),
            zipf: self.zipf,
            wait_ms,
            lease_ms,
            hold,
            data_bytes: self.data_bytes.unwrap_or(100),
            close: self.close.unwrap_or_default(),
        };
        if activity.weight == 0 {
            return bad("weight", "must be at least 1");
        }
        if activity.keys == 0 || activity.keys >= KeyId::NUMBER_END {
            return bad("keys", "must be at least 1 and below 2^56");
        }
        if let Some(exponent) = activity.zipf
            && !(exponent > 0.0 && exponent <= 10.0)
        {
            return bad("zipf", "must be over 0 and at most 10");
        }
        if activity.lease_ms == 0 {
            return bad("lease", "must be at least 1ms");
        }
        if activity.wait_ms > 0 && !kind.waits() {
            return bad("wait", "only contended and expiry wait");
        }
        if activity.hold.mean_ns > 0 && !(kind.releases() && kind != Kind::Data) {
            return bad("hold", "this kind holds nothing");
        }
        Ok(activity)
    }
}

/// `5ms`, or `exp:5ms` for an exponential distribution with that mean.
fn parse_hold(text: &str) -> Result<Hold, String> {
    let (is_random, mean) = match text.strip_prefix("exp:") {
        Some(mean) => (true, mean),
        None => (false, text),
    };
    let mean: Duration = times::parse(mean)?;
    Ok(Hold {
        mean_ns: u64::try_from(mean.as_nanos()).unwrap_or(u64::MAX),
        is_random,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mix_is_read_with_the_defaults_of_each_kind() {
        let text = "
            [[activity]]
            kind = 'pairs'
            weight = 8
            zipf = 0.9
            [[activity]]
            kind = 'contended'
            keys = 3
            wait = '2s'
            hold = 'exp:5ms'
            [[activity]]
            kind = 'expiry'
            lease = '50ms'
        ";
        let activities = parse_mix(text).expect("it is in order");
        assert_eq!(activities[0].kind, Kind::Pairs);
        assert_eq!((activities[0].weight, activities[0].zipf), (8, Some(0.9)));
        assert_eq!((activities[1].keys, activities[1].wait_ms), (3, 2_000));
        let hold = Hold {
            mean_ns: 5_000_000,
            is_random: true,
        };
        assert_eq!(activities[1].hold, hold);
        assert_eq!(
            (activities[2].lease_ms, activities[2].wait_ms),
            (50, 10_000)
        );
    }

    #[test]
    fn what_is_wrong_is_said_in_one_line() {
        for (text, part) in [
            ("", "activity"),
            ("activity = []", "1 to 255"),
            ("[[activity]]\nkind = 'nonsense'", "line 2"),
            ("[[activity]]\nkind = 'pairs'\nspeed = 1", "speed"),
            ("[[activity]]\nkind = 'pairs'\nkeys = 0", "keys: "),
            ("[[activity]]\nkind = 'pairs'\nkeys = -1", "line 3"),
            ("[[activity]]\nkind = 'pairs'\nlease = '0'", "lease: "),
            (
                "[[activity]]\nkind = 'pairs'\nlease = '5 parsecs'",
                "lease: ",
            ),
            ("[[activity]]\nkind = 'pairs'\nwait = '1s'", "wait: "),
            ("[[activity]]\nkind = 'expiry'\nhold = '1s'", "hold: "),
            ("[[activity]]\nkind = 'pairs'\nzipf = 0.0", "zipf: "),
            ("[[activity]]\nkind = 'pairs'\nweight = 0", "weight: "),
            ("[[activity", "line 1"),
        ] {
            let error = parse_mix(text).expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
            assert_eq!(error.lines().count(), 1, "{text}: {error}");
        }
    }
}
