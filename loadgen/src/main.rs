//! Drives a lock server, measures it, and watches whether it is right.
//!
//! - `options`, `plan`, `probe`: what is asked for, whether that can be, what the server says
//! - `workload`: activities, keys, streams of them from a seed, schedules
//! - `target`: the protocols, as codecs without I/O
//! - `clients`: the virtual clients of a thread, without I/O: what to send next, what an
//!   answer means
//! - `event_loop`: sockets and clock around them, one loop a thread
//! - `check`: what may be believed of each key, and what a violation is told with
//! - `record`, `timeline`: what is measured
//! - `run`, `sweep`: threads from start to end, and many runs
//! - `report`: tables, JSON, percentile files, plots, comparisons
//! - `host`, `net`, `timer`, `times`, `progress`: small things

mod check;
mod clients;
mod event_loop;
mod host;
mod net;
mod options;
mod outcome;
mod plan;
mod probe;
mod progress;
mod record;
mod report;
mod run;
mod sweep;
mod target;
mod timeline;
mod timer;
mod times;
mod workload;

use clap::Parser as _;
use options::{Command, CompareOptions, Options, RunOptions, SweepOptions};
use plan::Plan;
use run::Measured;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Why nothing was measured, or what was measured shows a fault.
#[derive(Debug)]
enum Failure {
    /// Exit status 2.
    Unmeasured(String),
    /// Exit status 1; what there is to say has been said.
    Faulty,
}

impl From<String> for Failure {
    fn from(what: String) -> Failure {
        Failure::Unmeasured(what)
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    let interrupted = Arc::new(AtomicBool::new(false));
    let result = watch_signals(&interrupted).and_then(|()| match &options.command {
        Command::Run(run) => run_once(run, &interrupted),
        Command::Sweep(sweep) => run_sweep(sweep, &interrupted),
        Command::Compare(compare) => run_compare(compare),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Faulty) => ExitCode::from(1),
        Err(Failure::Unmeasured(what)) => {
            eprintln!("loadgen: {what}");
            ExitCode::from(2)
        }
    }
}

/// The first signal ends the run in order, the second at once.
fn watch_signals(interrupted: &Arc<AtomicBool>) -> Result<(), Failure> {
    for signal in [SIGINT, SIGTERM] {
        let second = Arc::clone(interrupted);
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, second)
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(interrupted)))
            .map_err(|error| format!("signals: {error}"))?;
    }
    Ok(())
}

fn run_once(options: &RunOptions, interrupted: &AtomicBool) -> Result<(), Failure> {
    if let Some(path) = &options.plot {
        report::check_path(path)?;
    }
    let plan = Plan::new(&options.load, options.rate)?;
    let facts = probe::probe(&plan)?;
    plan.check_facts(&facts)?;
    let measured = run::run(&plan, &facts, interrupted)?;
    let shown = match options.json {
        true => json(&measured.report)?,
        false => report::run_table(&measured.report),
    };
    say(&shown);
    if let Some(path) = &options.hgrm {
        report::write_hgrm(path, &measured.totals)?;
    }
    if let Some(path) = &options.plot {
        report::plot_run(path, &measured.report)?;
    }
    judge(&measured)
}

/// Says what is wrong with what was measured, if anything is.
fn judge(measured: &Measured) -> Result<(), Failure> {
    if let Some(violation) = &measured.report.violation {
        eprintln!("loadgen: violation: {violation}");
        for line in &measured.history {
            eprintln!("{line}");
        }
    }
    if let Some(what) = &measured.failure {
        eprintln!("loadgen: {what}");
    }
    match measured.report.violation.is_some() || measured.failure.is_some() {
        true => Err(Failure::Faulty),
        false => Ok(()),
    }
}

fn run_sweep(options: &SweepOptions, interrupted: &AtomicBool) -> Result<(), Failure> {
    let plan = Plan::new(&options.load, Some(options.from))?;
    let facts = probe::probe(&plan)?;
    plan.check_facts(&facts)?;
    let quantile = options.percentile / 100.0;
    let report = sweep::sweep(options, &plan, |plan| {
        let measured = run::run(plan, &facts, interrupted)?;
        judge(&measured)?;
        if measured.report.interrupted {
            return Ok::<_, Failure>(None);
        }
        let at_percentile_ns = measured.totals.all.value_at_quantile(quantile);
        Ok(Some((measured.report, at_percentile_ns)))
    })?;
    let shown = match options.json {
        true => json(&report)?,
        false => report::sweep_table(&report),
    };
    say(&shown);
    Ok(())
}

fn run_compare(options: &CompareOptions) -> Result<(), Failure> {
    let plot = options.plot.as_deref();
    if let Some(path) = plot {
        report::check_path(path)?;
    }
    say(&report::compare(&options.before, &options.after, plot)?);
    Ok(())
}

fn json(value: &impl serde::Serialize) -> Result<String, String> {
    let text = serde_json::to_string(value).map_err(|error| error.to_string())?;
    Ok(text + "\n")
}

/// Prints a result. Whoever has stopped reading does not want it.
fn say(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}
