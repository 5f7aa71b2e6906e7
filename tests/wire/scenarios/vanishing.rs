//! Peers that vanish without a FIN, in a network of this test's own that can be
//! cut. Needs the right to make one (root, `unshare`, `ip`); skipped without.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::LONG_S;
use crate::common::client::Client;
use crate::common::configuration::in_every_configuration;
use crate::common::server::Server;
use crate::common::wire::{ANY_LOOP, RELEASE_ON_CLOSE, Reply, acquire, hello, release};

/// A network with nothing but a loopback interface; it lasts as long as this.
struct Network {
    keeper: Child,
}

impl Network {
    /// Makes one, or says why this process may not.
    fn new() -> Result<Network, String> {
        let mut keeper = Command::new("unshare")
            .args(["--net", "sh", "-c"])
            .arg("ip link set lo up && echo up && exec cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("unshare: {error}"))?;
        let stdout = keeper.stdout.take().expect("stdout is a pipe");
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        let network = Network { keeper };
        if line == "up\n" {
            Ok(network)
        } else {
            Err("no right to make a network namespace".to_owned())
        }
    }

    /// Moves the calling thread, and what it starts, into this network.
    fn enter(&self) {
        let namespace = File::open(format!("/proc/{}/ns/net", self.keeper.id())).unwrap();
        let kind = Some(LinkNameSpaceType::Network);
        move_into_link_name_space(namespace.as_fd(), kind).unwrap();
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // Either fails only if it has ended already.
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

/// From now on every packet in this thread's network is lost.
fn cut_the_network() {
    let status = Command::new("ip")
        .args(["link", "set", "lo", "down"])
        .status();
    assert!(status.unwrap().success());
}

#[test]
fn s28_s46_a_peer_that_vanishes_is_noticed_idle_or_not_and_its_grants_run_on() {
    let network = match Network::new() {
        Ok(network) => network,
        Err(why) => return println!("skipped: {why}"),
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            network.enter();
            in_every_configuration(|configuration| {
                let path = std::env::temp_dir()
                    .join(format!("leasehold-vanishing-{}", std::process::id()));
                let unix = format!("unix:{}", path.display());
                let flags = [
                    "--listen",
                    &unix,
                    "--peer-timeout",
                    "1s",
                    "--keepalive-idle",
                    "1s",
                    "--keepalive-interval",
                    "1s",
                    "--keepalive-count",
                    "1",
                ];
                let up = Command::new("ip")
                    .args(["link", "set", "lo", "up"])
                    .status();
                assert!(up.unwrap().success());
                let server = Server::start(configuration, &flags);
                // This session's packets go through no network.
                let mut local = Client::connect(&unix).unwrap();
                let keys = ["idle", "busy", "gift"].map(str::to_owned);
                let tokens = local.hold_all(&keys, LONG_S);
                let vanish = |queued: &[&str], held: &str| {
                    let mut client = server.connect();
                    client.send(&hello(RELEASE_ON_CLOSE, ANY_LOOP, 1, ""));
                    assert!(matches!(client.reply(), Reply::Welcome(_)));
                    client.send(&acquire(2, 0, LONG_S, held));
                    client.granted(2);
                    for key in queued {
                        client.send(&acquire(3, LONG_S, LONG_S, key));
                    }
                    client.expect_quiet();
                    client
                };
                let _idle = vanish(&["idle"], "held by the idle one");
                let _busy = vanish(&["busy", "gift"], "held by the busy one");
                assert_eq!(local.state("idle").waiters, 1);
                assert_eq!(local.state("busy").waiters, 1);
                cut_the_network();
                // A grant that is sent and never acknowledged.
                local.send(&release(4, tokens[2], "gift"));
                local.expect(Reply::Released(4));
                local.await_state("idle", |state| state.waiters == 0);
                local.await_state("busy", |state| state.waiters == 0);
                for key in ["held by the idle one", "held by the busy one", "gift"] {
                    assert!(local.state(key).held, "{key}: the end was not orderly");
                }
                drop(server);
                std::fs::remove_file(&path).unwrap();
            });
        });
    });
}
