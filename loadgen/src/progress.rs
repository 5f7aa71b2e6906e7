//! A line that lives while a run does, on a terminal.

use crate::plan::Plan;
use crate::timeline::Timeline;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal as _;

/// The line; nothing where standard error is no terminal.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    warmup_ms: u64,
}

impl Progress {
    /// The line of this run.
    pub(crate) fn new(plan: &Plan) -> Progress {
        let warmup_ms = plan.warmup.as_millis() as u64;
        let length_ms = warmup_ms + plan.seconds.as_millis() as u64;
        let target = match std::io::stderr().is_terminal() {
            true => ProgressDrawTarget::stderr(),
            false => ProgressDrawTarget::hidden(),
        };
        let bar = ProgressBar::with_draw_target(Some(length_ms), target);
        if let Ok(style) = ProgressStyle::with_template("{wide_bar} {msg}") {
            bar.set_style(style);
        }
        Progress { bar, warmup_ms }
    }

    /// Shows how far the run is.
    pub(crate) fn show(&mut self, timeline: &Timeline, passed_ns: u64) {
        let passed_ms = passed_ns / 1_000_000;
        self.bar.set_position(passed_ms);
        let message = match timeline.latest() {
            _ if passed_ms < self.warmup_ms => "warming up".into(),
            None => "measuring".into(),
            Some(second) => format!(
                "{} requests/s, p50 {} us, p99 {} us, max {} us, {} errors",
                second.requests, second.p50_us, second.p99_us, second.max_us, second.errors
            ),
        };
        self.bar.set_message(message);
    }

    /// Takes it away.
    pub(crate) fn finish(self) {
        self.bar.finish_and_clear();
    }
}
