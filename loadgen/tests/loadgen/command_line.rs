//! Bad input is one line and exit status 2; results come in every form.

use super::common::{Server, fake_server, measured, output, refusal};
use std::net::TcpListener;
use std::path::{Path, PathBuf};

fn temporary(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", std::process::id()))
}

#[track_caller]
fn assert_one_line(arguments: &str, part: &str) {
    let error = refusal(arguments);
    assert!(error.contains(part), "{arguments}: {error}");
    assert_eq!(error.lines().count(), 1, "{arguments}: {error}");
}

#[test]
fn servers_that_are_not_there_or_others_are_named() {
    // Bound and not listening: nobody can be reached there, and nobody else takes it.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let free = listener.local_addr().expect("bound").to_string();
    drop(listener);
    assert_one_line(&format!("run --server {free}"), &free);
    assert_one_line("run --server unix:/no/such/socket", "/no/such/socket");
    assert_one_line("run --server nowhere", "nowhere");

    let server = Server::start("127.0.0.1:0");
    for (target, address) in [
        ("native", &server.dlm),
        ("redis", &server.dlm),
        ("echo", &server.address),
        ("redis", &server.address),
    ] {
        assert_one_line(
            &format!("run --target {target} --server {address}"),
            "does not answer like",
        );
    }
}

#[test]
fn bad_input_is_one_line() {
    let address = fake_server(|_| Vec::new());
    let mix = temporary("bad.toml");
    std::fs::write(&mix, "[[activity]]\nkind = 'sideways'\n").expect("written");
    for (arguments, part) in [
        (format!("--mix {}", mix.display()), "line 2"),
        ("--mix /no/such.toml".into(), "/no/such.toml"),
        ("--workload churn --depth 4".into(), "--depth"),
        ("--lease 256s".into(), "--lease"),
        ("--key-bytes 1025".into(), "--key-bytes"),
        ("--route remote".into(), "--route"),
        ("--held 5 --seconds 300".into(), "--held"),
        ("--plot x.png".into(), "--plot"),
        ("--pin 4095".into(), "--pin"),
    ] {
        assert_one_line(&format!("run --server {address} {arguments}"), part);
    }
    std::fs::remove_file(&mix).expect("it is there");
    assert_one_line(
        &format!("sweep --server {address} --from 5 --to 1"),
        "--from",
    );
    assert_one_line("compare /no/such.json /no/such.json", "/no/such.json");
    for arguments in [
        "run --connections 0",
        "run --nonsense",
        "run --rate fast",
        "",
    ] {
        assert_eq!(output(arguments).status.code(), Some(2), "{arguments}");
    }
}

#[test]
fn results_come_as_table_json_percentiles_and_plots_and_compare() {
    let server = Server::start("127.0.0.1:0");
    let (hgrm, html) = (temporary("out.hgrm"), temporary("out.html"));
    let short = format!(
        "run --server {} --seconds 1.2 --warmup 0 --connections 2",
        server.address
    );
    let table = output(&format!(
        "{short} --hgrm {} --plot {}",
        hgrm.display(),
        html.display()
    ));
    assert_eq!(table.status.code(), Some(0), "{table:?}");
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    for word in [
        "p99.99",
        "acquire",
        "release",
        "CPU time per request: server",
        "no violation",
    ] {
        assert!(table.contains(word), "{word}: {table}");
    }
    for path in [
        &hgrm,
        &hgrm.with_extension("acquire.hgrm"),
        &hgrm.with_extension("release.hgrm"),
    ] {
        let text = std::fs::read_to_string(path).expect("written");
        assert!(
            text.contains("TotalCount") && text.contains("#[Max"),
            "{text}"
        );
        std::fs::remove_file(path).expect("it is there");
    }
    let page = std::fs::read_to_string(&html).expect("written");
    assert!(page.contains("<svg") && page.contains("polyline"), "{page}");
    std::fs::remove_file(&html).expect("it is there");

    let results = [temporary("a.json"), temporary("b.json")];
    for path in &results {
        let result = measured(&format!("{short} --json"));
        std::fs::write(path, result.to_string()).expect("written");
    }
    let svg = temporary("both.svg");
    let compared = output(&format!(
        "compare {} {} --plot {}",
        results[0].display(),
        results[1].display(),
        svg.display()
    ));
    assert_eq!(compared.status.code(), Some(0), "{compared:?}");
    let compared = String::from_utf8_lossy(&compared.stdout).into_owned();
    for word in ["ratio", "requests_per_second", "acquire p99_us"] {
        assert!(compared.contains(word), "{word}: {compared}");
    }
    assert!(
        std::fs::read_to_string(&svg)
            .expect("written")
            .contains("</svg>")
    );
    for path in results.iter().chain([&svg]) {
        std::fs::remove_file(path).expect("it is there");
    }
}

#[test]
fn readme_lists_every_flag() {
    const README: &str = include_str!("../../../README.md");
    let section = README
        .split("\n## ")
        .find(|section| section.starts_with("Load generator"));
    let section = section.expect("README has a section about it");
    for command in ["run", "sweep"] {
        let help = output(&format!("{command} --help"));
        let help = String::from_utf8_lossy(&help.stdout).into_owned();
        let flags: Vec<&str> = help
            .lines()
            .filter_map(|line| line.trim_start().strip_prefix("--"))
            .filter_map(|rest| rest.split([' ', ',']).next())
            .collect();
        assert!(flags.len() > 25, "{help}");
        for flag in flags {
            assert!(
                section.contains(&format!("`--{flag}`")),
                "--{flag} of {command}"
            );
        }
    }
}
