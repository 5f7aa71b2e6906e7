//! Two results side by side.

use super::{Figures, Report, plot::plot_runs};
use std::fmt::Write as _;
use std::path::Path;

/// Reads both results and gives their comparison in words; draws it if it is asked for.
///
/// # Errors
/// One line that names the file.
pub(crate) fn compare(before: &Path, after: &Path, plot: Option<&Path>) -> Result<String, String> {
    let (one, other) = (read(before)?, read(after)?);
    let text = compared(&one, &other);
    if let Some(path) = plot {
        let (before, after) = (before.display().to_string(), after.display().to_string());
        let runs = [(before.as_str(), &one), (after.as_str(), &other)];
        plot_runs(path, "comparison", &runs, &text)?;
    }
    Ok(text)
}

fn read(path: &Path) -> Result<Report, String> {
    let named = |what: String| format!("{}: {what}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| named(error.to_string()))?;
    serde_json::from_str(&text)
        .map_err(|error| named(format!("is no result of `run --json`: {error}")))
}

fn compared(one: &Report, other: &Report) -> String {
    let mut text = String::new();
    let said = |report: &Report| {
        format!(
            "{} {} {}x{} held={} seed={}",
            report.target,
            report.workload,
            report.connections,
            report.depth,
            report.held,
            report.seed
        )
    };
    // Writing to a String cannot fail.
    let _ = writeln!(text, "before: {}\nafter:  {}\n", said(one), said(other));
    let _ = writeln!(
        text,
        "{:<38}{:>14}{:>14}{:>8}",
        "", "before", "after", "ratio"
    );
    push(&mut text, "", &one.all, &other.all);
    row(
        &mut text,
        "generator_cpu_ns_per_request",
        one.generator_cpu_ns_per_request,
        other.generator_cpu_ns_per_request,
    );
    for (name, figures) in &one.operations {
        if let Some(others) = other.operations.get(name) {
            push(&mut text, name, figures, others);
        }
    }
    text
}

fn push(text: &mut String, name: &str, one: &Figures, other: &Figures) {
    let mut figure = |what: &str, before: f64, after: f64| {
        let space = if name.is_empty() { "" } else { " " };
        row(text, &format!("{name}{space}{what}"), before, after);
    };
    figure(
        "requests_per_second",
        one.requests_per_second,
        other.requests_per_second,
    );
    figure("p50_us", one.p50_us, other.p50_us);
    figure("p90_us", one.p90_us, other.p90_us);
    figure("p99_us", one.p99_us, other.p99_us);
    figure("p999_us", one.p999_us, other.p999_us);
    figure("p9999_us", one.p9999_us, other.p9999_us);
    figure("max_us", one.max_us, other.max_us);
    figure("errors", one.errors as f64, other.errors as f64);
    let cpu = one
        .server_cpu_ns_per_request
        .zip(other.server_cpu_ns_per_request);
    if let Some((before, after)) = cpu {
        figure("server_cpu_ns_per_request", before, after);
    }
}

fn row(text: &mut String, name: &str, before: f64, after: f64) {
    let ratio = match before == 0.0 {
        true => "–".into(),
        false => format!("{:.3}", after / before),
    };
    let _ = writeln!(text, "{name:<38}{before:>14.1}{after:>14.1}{ratio:>8}");
}
