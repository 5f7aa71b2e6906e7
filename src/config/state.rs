//! Where the state is that survives a restart, and what a restart waits for.

use std::path::PathBuf;

use super::{Config, Listen};

/// What survives a restart.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct StateConfig {
    /// Directory of what survives a restart, for this server alone; none: nothing does.
    /// [default: in systemd's STATE_DIRECTORY, else in /var/lib/leasehold for root, else
    /// in the user's state directory, one named after the first address listened on;
    /// none where that has port 0]
    #[arg(
        long = "state-dir",
        env = "LEASEHOLD_STATE_DIR",
        value_name = "DIRECTORY",
        value_parser = directory
    )]
    pub directory: Option<StateDirectory>,

    /// After a crash, wait until every lease from before must be over, or skip that wait:
    /// then a lock may come to have two holders
    #[arg(
        long,
        env = "LEASEHOLD_GRACE",
        value_name = "WHAT",
        default_value = "wait"
    )]
    pub grace: Grace,
}

/// `--state-dir` as it is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateDirectory {
    /// Nothing survives a restart.
    Off,
    /// This directory itself.
    At(PathBuf),
}

/// What is done about leases from before a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Grace {
    /// Keys that may still be held are granted to nobody
    Wait,
    /// Every key is free at once, whoever may still believe in a lease
    Skip,
}

impl Config {
    /// The address after which the default state directory is named: the first TCP
    /// address of `--listen`, else its first path, else that of `--dlm-listen`. `None` if
    /// that is any free port: another start then would have another one.
    pub fn state_name(&self) -> Option<Listen> {
        let is_tcp = |listen: &&Listen| matches!(listen, Listen::Tcp(_));
        let native = self.listen.iter().find(is_tcp).or(self.listen.first());
        let named = native.cloned().or(self.dlm.listen.map(Listen::Tcp))?;
        let is_any_port = matches!(&named, Listen::Tcp(address) if address.port() == 0);
        (!is_any_port).then_some(named)
    }
}

fn directory(text: &str) -> Result<StateDirectory, String> {
    match text {
        "none" => Ok(StateDirectory::Off),
        "" => Err("must be a directory or none".into()),
        path => Ok(StateDirectory::At(path.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::accepted;

    #[test]
    fn the_state_is_named_after_the_first_tcp_address_or_else_path_or_else_dlm_address() {
        let name = |flags| accepted(flags).state_name().map(|it| it.to_string());
        for (flags, expected) in [
            ("", Some("127.0.0.1:5327")),
            (
                "--listen unix:/run/l,127.0.0.1:7,127.0.0.1:8",
                Some("127.0.0.1:7"),
            ),
            (
                "--listen unix:/run/l --listen unix:/run/m",
                Some("unix:/run/l"),
            ),
            ("--listen off", Some("0.0.0.0:37373")),
            ("--listen [::1]:9 --dlm-listen off", Some("[::1]:9")),
            ("--listen 127.0.0.1:0", None),
            ("--listen unix:/run/l,127.0.0.1:0", None),
            ("--listen off --dlm-listen 127.0.0.1:0", None),
            ("--dlm-listen 127.0.0.1:0", Some("127.0.0.1:5327")),
        ] {
            assert_eq!(name(flags).as_deref(), expected, "{flags}");
        }
    }
}
