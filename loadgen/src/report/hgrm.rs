//! HdrHistogram's percentile text, which its plotters read.

use super::Totals;
use hdrhistogram::Histogram;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Steps in each halving of what is left to 100 %: what the format's own tools use.
const STEPS_PER_HALVING: u32 = 5;

/// Writes all requests to `path`, and each operation beside it.
///
/// # Errors
/// One line that names the file.
pub(crate) fn write_hgrm(path: &Path, totals: &Totals) -> Result<(), String> {
    let write = |path: &Path, latency_ns: &Histogram<u64>| {
        let file = std::fs::File::create(path);
        file.and_then(|file| write_text(&mut BufWriter::new(file), latency_ns))
            .map_err(|error| format!("--hgrm {}: {error}", path.display()))
    };
    write(path, &totals.all)?;
    for (name, record) in totals.operations() {
        write(&beside(path, name), &record.latency_ns)?;
    }
    Ok(())
}

/// `out.hgrm` and `acquire` make `out.acquire.hgrm`.
fn beside(path: &Path, name: &str) -> PathBuf {
    let extension = match path.extension() {
        Some(extension) => format!("{name}.{}", extension.display()),
        None => name.into(),
    };
    path.with_extension(extension)
}

fn write_text(out: &mut impl Write, latency_ns: &Histogram<u64>) -> io::Result<()> {
    let millis = |ns: f64| ns / 1e6;
    writeln!(
        out,
        "{:>12} {:>14} {:>10} {:>14}\n",
        "Value", "Percentile", "TotalCount", "1/(1-Percentile)"
    )?;
    for step in latency_ns.iter_quantiles(STEPS_PER_HALVING) {
        let value = millis(step.value_iterated_to() as f64);
        let quantile = step.quantile_iterated_to();
        let count = latency_ns.count_between(0, step.value_iterated_to());
        write!(out, "{value:>12.6} {quantile:>2.12} {count:>10}")?;
        if quantile < 1.0 {
            write!(out, " {:>14.2}", 1.0 / (1.0 - quantile))?;
        }
        writeln!(out)?;
    }
    writeln!(
        out,
        "#[Mean    = {:>12.6}, StdDeviation   = {:>12.6}]",
        millis(latency_ns.mean()),
        millis(latency_ns.stdev())
    )?;
    writeln!(
        out,
        "#[Max     = {:>12.6}, Total count    = {:>12}]",
        millis(latency_ns.max() as f64),
        latency_ns.len()
    )?;
    writeln!(
        out,
        "#[Buckets = {:>12}, SubBuckets     = {:>12}]",
        latency_ns.buckets(),
        2048
    )?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_has_a_line_for_each_step_and_ends_with_the_whole() {
        let mut latency_ns = Histogram::new(3).expect("constant");
        for millis in 1..=1_000_u64 {
            latency_ns.record(millis * 1_000_000).expect("it grows");
        }
        let mut text = Vec::new();
        write_text(&mut text, &latency_ns).expect("a Vec takes all");
        let text = String::from_utf8(text).expect("ASCII");
        let lines: Vec<Vec<f64>> = text
            .lines()
            .skip(2)
            .filter(|line| !line.starts_with('#'))
            .map(|line| {
                line.split_whitespace()
                    .map(|word| word.parse().expect(word))
                    .collect()
            })
            .collect();
        let half = lines
            .iter()
            .find(|line| line[1] == 0.5)
            .expect("the median");
        assert!((half[0] - 500.0).abs() < 1.0 && half[2] == 500.0 && half[3] == 2.0);
        let last = lines.last().expect("lines");
        assert!((last[0] - 1_000.0).abs() < 1.0 && last[1] == 1.0 && last[2] == 1_000.0);
        assert!(text.contains("Total count    =         1000]"));
    }

    #[test]
    fn operations_go_beside_the_whole() {
        assert_eq!(
            beside(Path::new("a/out.hgrm"), "get"),
            Path::new("a/out.get.hgrm")
        );
        assert_eq!(beside(Path::new("out"), "get"), Path::new("out.get"));
    }
}
