//! What a run is to do: options checked against each other, and against the server.

use crate::host;
use crate::net::Address;
use crate::options::{Arrivals, LoadOptions, RouteOption, Switch};
use crate::probe::Facts;
use crate::target::DlmIdentity;
use crate::workload::{Activity, DISTINCT_BYTES, Kind, Settings, read_mix};
use leasehold::limits::{DLM_PORT, NATIVE_PORT};
use std::path::Path;
use std::time::Duration;

/// The protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Target {
    /// leasehold's native protocol.
    Native,
    /// JackrabbitDLM's.
    Dlm,
    /// Redis or Valkey: SET NX PX, and a script to release.
    Redis,
    /// The bare server of bench/.
    Echo,
}

impl Target {
    /// As it is written.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Target::Native => "native",
            Target::Dlm => "dlm",
            Target::Redis => "redis",
            Target::Echo => "echo",
        }
    }
}

/// A run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// The protocol.
    pub(crate) target: Target,
    /// The server.
    pub(crate) server: Address,
    /// What clients do.
    pub(crate) activities: Vec<Activity>,
    /// In words.
    pub(crate) workload: String,
    /// Connections.
    pub(crate) connections: u32,
    /// Clients on each.
    pub(crate) depth: u32,
    /// Threads.
    pub(crate) threads: u32,
    /// Time measured.
    pub(crate) seconds: Duration,
    /// Load before that.
    pub(crate) warmup: Duration,
    /// Requests per second, in the open loop.
    pub(crate) rate: Option<f64>,
    /// How they are spaced.
    pub(crate) arrivals: Arrivals,
    /// Length of keys.
    pub(crate) key_bytes: usize,
    /// Other keys to hold.
    pub(crate) held: u64,
    /// Seed of the streams.
    pub(crate) seed: u64,
    /// Whose keys sessions ask for.
    pub(crate) route: RouteOption,
    /// Whether answers are watched.
    pub(crate) checks: bool,
    /// Connect again when the server goes away.
    pub(crate) reconnects: bool,
    /// Cores of the threads, in turn.
    pub(crate) cores: Vec<usize>,
    /// The server's process.
    pub(crate) server_pid: Option<u32>,
    /// `NAME:SECRET`, or empty.
    pub(crate) credential: Vec<u8>,
    /// Of JackrabbitDLM requests.
    pub(crate) identity: Option<DlmIdentity>,
}

/// Keys beyond which watching is no longer cheap: eight bytes each.
const MAX_CHECKED_KEYS: u64 = 1 << 24;
/// Keys that all clients share each have a mutex and a state.
const MAX_SHARED_KEYS: u64 = 1 << 24;
/// JackrabbitDLM keeps what nobody with an identity asks for at most that long.
const DLM_HELD_LEASE_MS: u32 = 3_540_000;
/// What nearly every server allows.
const REDIS_HELD_LEASE_MS: u32 = 3_600_000;

impl Plan {
    /// Checks the options against each other.
    ///
    /// # Errors
    /// One line that names the flag.
    pub(crate) fn new(load: &LoadOptions, rate: Option<f64>) -> Result<Plan, String> {
        let target = load.target;
        let (activities, workload) = match &load.mix {
            Some(path) => (read_mix(path)?, format!("mix {}", path.display())),
            None => {
                let settings = Settings {
                    keys: load.keys,
                    zipf: load.zipf,
                    wait: load.wait.clone(),
                    lease: load.lease.clone(),
                    hold: load.hold.clone(),
                    data_bytes: load.data_bytes,
                    close: load.close,
                    ..Settings::of(load.workload)
                };
                let flag = |field: &str| format!("--{}", field.replace('_', "-"));
                let name = format!("{:?}", load.workload).to_lowercase();
                (vec![settings.into_activity(flag)?], name)
            }
        };
        let plan = Plan {
            target,
            server: server_address(load)?,
            workload,
            connections: load.connections,
            depth: load.depth,
            threads: load.threads,
            seconds: load.seconds,
            warmup: load.warmup,
            rate,
            arrivals: load.arrivals,
            key_bytes: load.key_bytes,
            held: load.held,
            seed: load.seed,
            route: load.route,
            checks: load.check.map_or_else(
                || total_keys(&activities) <= MAX_CHECKED_KEYS,
                |switch| switch == Switch::On,
            ),
            reconnects: load.reconnect,
            cores: match &load.pin {
                None => Vec::new(),
                Some(text) => host::parse_cores(text).map_err(|what| format!("--pin: {what}"))?,
            },
            server_pid: load.server_pid,
            credential: read_credential(load.credential_file.as_deref())?,
            identity: read_identity(load)?,
            activities,
        };
        plan.check_numbers()?;
        plan.check_target()?;
        Ok(plan)
    }

    /// Number of clients.
    pub(crate) fn clients(&self) -> u64 {
        u64::from(self.connections) * u64::from(self.depth)
    }

    /// Lease of the keys that are held.
    pub(crate) fn held_lease_ms(&self, facts: &Facts) -> u32 {
        match self.target {
            Target::Native => facts.max_lease_ms,
            Target::Dlm => DLM_HELD_LEASE_MS,
            Target::Redis | Target::Echo => REDIS_HELD_LEASE_MS,
        }
    }

    /// Requests that a round of the clients has, on average.
    pub(crate) fn requests_per_round(&self) -> f64 {
        if self.target == Target::Echo {
            return 1.0;
        }
        let weights: u64 = self.activities.iter().map(|it| u64::from(it.weight)).sum();
        let requests = |it: &Activity| u64::from(it.weight * it.kind.requests_per_round());
        self.activities.iter().map(requests).sum::<u64>() as f64 / weights as f64
    }

    /// Checks the plan against what the server said of itself.
    ///
    /// # Errors
    /// One line that names the flag.
    pub(crate) fn check_facts(&self, facts: &Facts) -> Result<(), String> {
        if self.target != Target::Native {
            return Ok(());
        }
        if self.key_bytes > facts.max_key_bytes {
            return Err(format!(
                "--key-bytes {}: this server takes {} at most",
                self.key_bytes, facts.max_key_bytes
            ));
        }
        let longest = self.activities.iter().map(|it| it.lease_ms).max();
        if let Some(lease_ms) = longest.filter(|lease_ms| *lease_ms > facts.max_lease_ms) {
            return Err(format!(
                "--lease {lease_ms}ms: this server grants {}ms at most",
                facts.max_lease_ms
            ));
        }
        if self.route == RouteOption::Remote && facts.loops == 1 {
            return Err("--route remote: this server has one loop".into());
        }
        let lasts = self.warmup + self.seconds;
        if self.held > 0 && lasts.as_millis() >= u128::from(facts.max_lease_ms) {
            return Err(format!(
                "--held: keys are held for {}ms at most, and the run is longer",
                facts.max_lease_ms
            ));
        }
        Ok(())
    }

    fn check_numbers(&self) -> Result<(), String> {
        if self.threads > self.connections {
            return Err("--threads: more than --connections".into());
        }
        if self.seconds.is_zero() {
            return Err("--seconds: must be over 0".into());
        }
        if let Some(rate) = self.rate
            && !(rate > 0.0 && rate <= 1e9)
        {
            return Err("--rate: must be over 0 and at most 1000000000".into());
        }
        if !(DISTINCT_BYTES..=leasehold::limits::MAX_KEY_BYTES).contains(&self.key_bytes) {
            return Err(format!(
                "--key-bytes: must be {DISTINCT_BYTES} to {}",
                leasehold::limits::MAX_KEY_BYTES
            ));
        }
        for activity in &self.activities {
            let is_private = activity.kind.has_private_keys();
            if is_private && self.target != Target::Echo && activity.keys < self.clients() {
                return Err(format!(
                    "--keys {}: fewer than the {} clients, each of which has its own",
                    activity.keys,
                    self.clients()
                ));
            }
            if !is_private && activity.keys > MAX_SHARED_KEYS {
                return Err(format!(
                    "--keys: {MAX_SHARED_KEYS} at most where all share them"
                ));
            }
        }
        Ok(())
    }

    fn check_target(&self) -> Result<(), String> {
        let name = self.target.name();
        if self.target != Target::Native && self.route != RouteOption::Off {
            return Err(format!("--route: not with --target {name}"));
        }
        if self.target == Target::Echo {
            if self.held > 0 {
                return Err("--held: an echo server holds nothing".into());
            }
            if self.key_bytes != DISTINCT_BYTES {
                return Err("--key-bytes: the echo server counts on 16".into());
            }
        }
        if self.identity.is_some() && self.target != Target::Dlm {
            return Err(format!("--dlm-name: not with --target {name}"));
        }
        self.check_kinds()
    }

    fn check_kinds(&self) -> Result<(), String> {
        let name = self.target.name();
        for activity in &self.activities {
            let kind = activity.kind;
            let can = match self.target {
                Target::Native => !matches!(kind, Kind::Data | Kind::Line),
                Target::Dlm => matches!(kind, Kind::Pairs | Kind::Try | Kind::Data),
                Target::Redis => matches!(kind, Kind::Pairs | Kind::Try | Kind::Churn),
                Target::Echo => matches!(kind, Kind::Pairs | Kind::Line),
            };
            let kind_name = format!("{kind:?}").to_lowercase();
            if !can {
                return Err(format!("--workload {kind_name}: not with --target {name}"));
            }
            let is_one_shot = self.is_one_shot() || kind == Kind::Churn;
            if is_one_shot && self.depth > 1 {
                return Err(format!(
                    "--depth: {kind_name} on {name} has one request on a connection at a time"
                ));
            }
            if kind == Kind::Line && self.activities.len() > 1 {
                return Err("--mix: line goes with nothing else".into());
            }
        }
        Ok(())
    }

    /// Whether each request has a connection of its own.
    pub(crate) fn is_one_shot(&self) -> bool {
        self.target == Target::Dlm || self.activities.iter().any(|it| it.kind == Kind::Line)
    }
}

/// Number of keys of all activities.
pub(crate) fn total_keys(activities: &[Activity]) -> u64 {
    activities.iter().map(|activity| activity.keys).sum()
}

fn server_address(load: &LoadOptions) -> Result<Address, String> {
    const REDIS_PORT: u16 = 6379;
    let text = match (&load.server, load.target) {
        (Some(text), _) => text.clone(),
        (None, Target::Native) => format!("127.0.0.1:{NATIVE_PORT}"),
        (None, Target::Dlm) => format!("127.0.0.1:{DLM_PORT}"),
        (None, Target::Redis) => format!("127.0.0.1:{REDIS_PORT}"),
        (None, Target::Echo) => return Err("--server: an echo server has no usual port".into()),
    };
    Address::resolve(&text).map_err(|what| format!("--server: {what}"))
}

fn read_credential(path: Option<&Path>) -> Result<Vec<u8>, String> {
    let text = match path {
        Some(path) => std::fs::read_to_string(path)
            .map_err(|error| format!("--credential-file {}: {error}", path.display()))?,
        None => std::env::var("LEASEHOLD_CREDENTIAL").unwrap_or_default(),
    };
    let credential = text.trim_end_matches(['\n', '\r']);
    if credential.len() > leasehold::limits::MAX_CREDENTIAL_BYTES || credential.contains('\n') {
        return Err("--credential-file: one line, NAME:SECRET".into());
    }
    Ok(credential.into())
}

fn read_identity(load: &LoadOptions) -> Result<Option<DlmIdentity>, String> {
    #[derive(serde::Deserialize)]
    struct File {
        #[serde(rename = "Identity")]
        secret: String,
    }
    let (Some(name), Some(path)) = (&load.dlm_name, &load.dlm_identity_file) else {
        return Ok(None);
    };
    let named = |what: String| format!("--dlm-identity-file {}: {what}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| named(error.to_string()))?;
    let file: File = serde_json::from_str(&text).map_err(|error| named(error.to_string()))?;
    Ok(Some(DlmIdentity {
        name: name.clone(),
        secret: file.secret,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{Command, Options};
    use clap::Parser as _;

    fn plan(arguments: &str) -> Result<Plan, String> {
        let words = "loadgen run --server 127.0.0.1:1".split(' ');
        let options = Options::try_parse_from(words.chain(arguments.split_whitespace()))
            .map_err(|error| error.to_string())?;
        match options.command {
            Command::Run(run) => Plan::new(&run.load, run.rate),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn impossible_combinations_are_named() {
        for (arguments, part) in [
            ("--target dlm --depth 2", "--depth"),
            ("--workload churn --depth 2", "--depth"),
            (
                "--target redis --workload contended",
                "--workload contended",
            ),
            ("--target dlm --workload expiry", "--workload expiry"),
            ("--target native --workload data", "--workload data"),
            ("--target echo --workload try", "--workload try"),
            ("--target echo --held 5", "--held"),
            ("--target redis --route on", "--route"),
            ("--threads 3 --connections 2", "--threads"),
            ("--connections 10 --depth 10 --keys 99", "--keys"),
            ("--workload contended --keys 99999999", "--keys"),
            ("--workload pairs --wait 1s", "--wait"),
            ("--lease 0", "--lease"),
            ("--rate 0", "--rate"),
            ("--rate nan", "--rate"),
            ("--seconds 0", "--seconds"),
            ("--key-bytes 15", "--key-bytes"),
            ("--pin x", "--pin"),
            ("--mix /no/such/file", "--mix /no/such/file"),
            (
                "--dlm-name x --dlm-identity-file /no/such/file",
                "--dlm-identity-file",
            ),
        ] {
            let error = plan(arguments).expect_err(arguments);
            assert!(error.contains(part), "{arguments}: {error}");
            assert_eq!(error.lines().count(), 1, "{arguments}: {error}");
        }
    }

    #[test]
    fn defaults_are_those_of_the_contract() {
        let plan = plan("").expect("nothing is needed but a server");
        assert_eq!(plan.target, Target::Native);
        assert_eq!(plan.activities.len(), 1);
        assert_eq!(plan.activities[0].kind, Kind::Pairs);
        assert!(plan.checks && plan.rate.is_none());
        assert!((plan.requests_per_round() - 2.0).abs() < 1e-9);
    }

    #[test]
    fn watching_is_off_by_itself_only_for_very_many_keys() {
        assert!(!plan("--keys 20000000").expect("allowed").checks);
        assert!(plan("--keys 20000000 --check on").expect("allowed").checks);
        assert!(!plan("--check off").expect("allowed").checks);
    }
}
