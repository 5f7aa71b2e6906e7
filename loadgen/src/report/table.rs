//! Tables for people.

use super::{Figures, Report};
use crate::sweep::SweepReport;
use std::fmt::Write as _;

const HEAD: &str = "                requests/s       p50       p90       p99     p99.9    p99.99       max    errors";

/// The result of a run.
pub(crate) fn run_table(report: &Report) -> String {
    let mut text = format!(
        "{} {}, {}: {} connections x {} deep, {} thread{}, {:.1} s{}\n\n",
        report.target,
        report.server,
        report.workload,
        report.connections,
        report.depth,
        report.threads,
        if report.threads == 1 { "" } else { "s" },
        report.seconds,
        if report.interrupted {
            " (ended early)"
        } else {
            ""
        },
    );
    text.push_str(HEAD);
    text.push_str("   (microseconds)\n");
    push_row(&mut text, "all", &report.all);
    for (name, figures) in &report.operations {
        push_row(&mut text, name, figures);
    }
    text.push('\n');
    // Writing to a String cannot fail.
    for (name, count) in &report.outcomes {
        let _ = writeln!(text, "{name}: {count}");
    }
    if let Some(rate) = report.rate {
        let _ = writeln!(
            text,
            "asked for: {rate} requests/s; never sent: {}",
            report.unsent
        );
    }
    if report.reconnections > 0 {
        let _ = writeln!(text, "connections made again: {}", report.reconnections);
    }
    let server = match report.all.server_cpu_ns_per_request {
        Some(cpu_ns) => format!("server {cpu_ns} ns, "),
        None => String::new(),
    };
    let generator = report.generator_cpu_ns_per_request;
    let _ = writeln!(
        text,
        "CPU time per request: {server}generator {generator} ns"
    );
    let watched = match (report.check, &report.violation) {
        (false, _) => "not watched".into(),
        (true, None) => format!(
            "no violation; the state of {} keys agreed at the end",
            report.verified_keys
        ),
        (true, Some(violation)) => format!("VIOLATION: {violation}"),
    };
    let _ = writeln!(text, "check: {watched}");
    text
}

fn push_row(text: &mut String, name: &str, figures: &Figures) {
    let _ = write!(text, "{name:<12}{:>14.0}", figures.requests_per_second);
    for us in [
        figures.p50_us,
        figures.p90_us,
        figures.p99_us,
        figures.p999_us,
        figures.p9999_us,
        figures.max_us,
    ] {
        let _ = write!(text, "{us:>10.1}");
    }
    let _ = writeln!(text, "{:>10}", figures.errors);
}

/// The result of a sweep.
pub(crate) fn sweep_table(report: &SweepReport) -> String {
    let mut text = String::from(
        "       asked    requests/s       p50       p99     p99.9       max    errors    unsent\n",
    );
    for step in &report.steps {
        let _ = write!(
            text,
            "{:>12.0}{:>14.0}",
            step.rate.unwrap_or(0.0),
            step.all.requests_per_second
        );
        for us in [
            step.all.p50_us,
            step.all.p99_us,
            step.all.p999_us,
            step.all.max_us,
        ] {
            let _ = write!(text, "{us:>10.1}");
        }
        let _ = writeln!(text, "{:>10}{:>10}", step.all.errors, step.unsent);
    }
    let bound = format!("p{} within {} us", report.percentile, report.bound_us);
    let _ = match report.knee_requests_per_second {
        Some(knee) => writeln!(
            text,
            "\nknee: {knee:.0} requests/s is the most with {bound}"
        ),
        None => writeln!(text, "\nno rate that was tried has {bound}"),
    };
    text
}
