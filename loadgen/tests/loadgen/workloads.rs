//! Every workload runs against a server that is right, and finds nothing.

use super::common::{Server, measured};
use serde_json::Value;

const SHORT: &str = "--seconds 0.3 --warmup 0.05 --json";
/// What other tools read.
const NAMES: [&str; 8] = [
    "requests_per_second",
    "p50_us",
    "p99_us",
    "p999_us",
    "max_us",
    "errors",
    "violations",
    "server_cpu_ns_per_request",
];

fn run(server: &Server, arguments: &str) -> Value {
    measured(&format!(
        "run --server {} {SHORT} {arguments}",
        server.address
    ))
}

#[track_caller]
fn assert_right(result: &Value, operations: &[&str]) {
    assert_eq!(result["errors"], 0, "{result}");
    assert_eq!(result["violations"], 0, "{result}");
    assert!(
        result["requests_per_second"].as_f64() > Some(0.0),
        "{result}"
    );
    for operation in operations {
        for name in NAMES {
            assert!(!result["operations"][operation][name].is_null() || name == NAMES[7]);
        }
        let rate = &result["operations"][operation]["requests_per_second"];
        assert!(rate.as_f64() > Some(0.0), "{operation}: {result}");
    }
}

#[test]
fn the_default_is_pairs_and_the_contract_s_names_are_there() {
    let server = Server::start("127.0.0.1:0");
    let result = run(&server, "--connections 3 --depth 4 --keys 1000 --seed 9");
    assert_right(&result, &["acquire", "release"]);
    for name in NAMES {
        assert!(result[name].is_number(), "{name}: {result}");
    }
    assert_eq!(result["verified_keys"], 996, "each client has its share");
    // Of each pair both requests count; the window cuts few apart.
    let rate = |name: &str| result["operations"][name]["requests_per_second"].as_f64();
    let apart = rate("acquire")
        .zip(rate("release"))
        .map(|(a, r)| (a - r).abs());
    assert!(apart <= Some(12.0 / 0.3 + 1.0), "{result}");
}

#[test]
fn every_native_workload_finds_nothing() {
    let server = Server::start("127.0.0.1:0");
    for (arguments, operations) in [
        (
            "--zipf 1.1 --keys 5000 --threads 2 --connections 4",
            &["acquire", "release"][..],
        ),
        (
            "--route on --connections 4 --depth 3",
            &["acquire", "release"],
        ),
        (
            "--route remote --connections 4 --depth 3",
            &["acquire", "release"],
        ),
        (
            "--held 5000 --connections 4 --key-bytes 40",
            &["acquire", "release"],
        ),
        ("--rate 2000 --connections 4", &["acquire", "release"]),
        (
            "--rate 2000 --arrivals poisson --threads 2 --connections 4",
            &["acquire", "release"],
        ),
        (
            "--workload contended --keys 2 --connections 4 --depth 2 --threads 2 --hold exp:200us",
            &["acquire", "release", "hand_over"],
        ),
        (
            "--workload try --keys 2 --connections 8 --threads 2",
            &["acquire", "release"],
        ),
        (
            "--workload expiry --keys 20 --lease 20ms --connections 8",
            &["acquire", "hand_over"],
        ),
        (
            "--workload churn --connections 3",
            &["acquire", "release", "connect"],
        ),
        (
            "--workload churn --close reset --connections 3",
            &["acquire", "release", "connect"],
        ),
    ] {
        let result = run(&server, arguments);
        assert_right(&result, operations);
        if arguments.contains("--workload try") {
            assert!(
                result["outcomes"]["timed_out"].as_u64() > Some(0),
                "{result}"
            );
        }
        assert!(result["verified_keys"].as_u64() > Some(0) || arguments.contains("expiry"));
    }
}

#[test]
fn a_unix_socket_serves_like_a_port() {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("loadgen-{}.sock", std::process::id()));
    let server = Server::start(&format!("unix:{}", path.display()));
    let result = run(&server, "--connections 2 --depth 8");
    assert_right(&result, &["acquire", "release"]);
    assert!(result["server_cpu_ns_per_request"].is_number(), "{result}");
    drop(server);
    let _ = std::fs::remove_file(path);
}

#[test]
fn the_server_s_process_is_found_by_its_address_or_given() {
    let server = Server::start("127.0.0.1:0");
    let pid = server.pid();
    for arguments in [String::new(), format!("--server-pid {pid}")] {
        let result = run(&server, &arguments);
        let cpu = result["server_cpu_ns_per_request"].as_f64();
        assert!(cpu > Some(0.0), "{result}");
    }
    let result = run(&server, "--server-pid 999999999");
    assert!(result["server_cpu_ns_per_request"].is_null(), "{result}");
}

#[test]
fn jackrabbit_dlm_is_locked_and_stores() {
    let server = Server::start("127.0.0.1:0");
    let run = |arguments: &str| {
        measured(&format!(
            "run --target dlm --server {} {SHORT} {arguments}",
            server.dlm
        ))
    };
    assert_right(&run("--connections 4 --threads 2"), &["lock", "unlock"]);
    assert_right(
        &run("--connections 4 --held 20 --rate 200"),
        &["lock", "unlock"],
    );
    let data = run("--workload data --connections 4 --data-bytes 3000");
    assert_right(&data, &["put", "get"]);
    let tried = run("--workload try --keys 1 --connections 4 --hold 1ms");
    assert_right(&tried, &["lock", "unlock"]);
    assert!(tried["outcomes"]["not_owner"].as_u64() > Some(0), "{tried}");
}

#[test]
fn a_mix_does_all_of_its_activities() {
    let server = Server::start("127.0.0.1:0");
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("mix-{}.toml", std::process::id()));
    let mix = "[[activity]]\nkind = 'pairs'\nweight = 3\n\
               [[activity]]\nkind = 'contended'\nkeys = 2\n\
               [[activity]]\nkind = 'try'\nkeys = 1\nhold = '1ms'\n\
               [[activity]]\nkind = 'churn'\n";
    std::fs::write(&path, mix).expect("written");
    let result = run(
        &server,
        &format!("--connections 8 --mix {}", path.display()),
    );
    std::fs::remove_file(&path).expect("it is there");
    assert_right(&result, &["acquire", "release", "connect"]);
    assert!(
        result["outcomes"]["timed_out"].as_u64() > Some(0),
        "{result}"
    );
}

#[test]
fn a_sweep_ends_with_a_knee() {
    let server = Server::start("127.0.0.1:0");
    // A bound that only a hang could break, and a rate that any machine can keep.
    let report = measured(&format!(
        "sweep --server {} --seconds 0.2 --warmup 0 --connections 4 --from 100 --to 400 \
         --factor 2 --bound 30s --json",
        server.address
    ));
    let steps = report["steps"].as_array().expect("steps");
    assert_eq!(steps[0]["rate"], 100.0);
    assert!(
        report["knee_requests_per_second"].as_f64() >= Some(100.0),
        "{report}"
    );
    // Nothing is ever answered in a microsecond.
    let report = measured(&format!(
        "sweep --server {} --seconds 0.2 --warmup 0 --from 100 --bound 1us --json",
        server.address
    ));
    assert!(report["knee_requests_per_second"].is_null(), "{report}");
}
