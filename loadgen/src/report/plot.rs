//! Curves: the latency that a share of requests does not pass, and rate and latency over
//! time. As SVG, or in an HTML page with the figures.

use super::Report;
use plotters::coord::ranged1d::{KeyPointHint, Ranged};
use plotters::prelude::*;
use std::error::Error;
use std::fmt::Write as _;
use std::path::Path;

const WIDTH: u32 = 900;
const HEIGHT: u32 = 420;
const COLORS: [RGBColor; 4] = [
    RGBColor(31, 119, 180),
    RGBColor(214, 39, 40),
    RGBColor(44, 160, 44),
    RGBColor(148, 103, 189),
];

/// Draws a run into `path`.
///
/// # Errors
/// One line that names the flag.
pub(crate) fn plot_run(path: &Path, report: &Report) -> Result<(), String> {
    let title = format!(
        "{} {}, {} x {}",
        report.target, report.workload, report.connections, report.depth
    );
    let mut charts = vec![percentile_chart(&title, &[("all", report)])];
    if report.timeline.len() > 1 {
        charts.push(timeline_chart(&title, report));
    }
    write(path, &title, charts, &super::run_table(report))
}

/// Draws the percentile curves of several runs into `path`, and `text` below where
/// there is room for it.
///
/// # Errors
/// One line that names the flag.
pub(crate) fn plot_runs(
    path: &Path,
    title: &str,
    runs: &[(&str, &Report)],
    text: &str,
) -> Result<(), String> {
    write(path, title, vec![percentile_chart(title, runs)], text)
}

fn write(
    path: &Path,
    title: &str,
    charts: Vec<Result<String, Box<dyn Error>>>,
    text: &str,
) -> Result<(), String> {
    let named = |what: String| format!("--plot {}: {what}", path.display());
    let charts: Result<Vec<String>, _> = charts.into_iter().collect();
    let charts = charts.map_err(|error| named(error.to_string()))?;
    let content = match path.extension().and_then(|extension| extension.to_str()) {
        Some("svg") => stacked(&charts),
        Some("html") => page(title, &charts, text),
        _ => return Err(named("must end in .svg or .html".into())),
    };
    std::fs::write(path, content).map_err(|error| named(error.to_string()))
}

/// Whether a plot can be drawn there.
///
/// # Errors
/// One line that names the flag.
pub(crate) fn check_path(path: &Path) -> Result<(), String> {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("svg" | "html") => Ok(()),
        _ => Err(format!(
            "--plot {}: must end in .svg or .html",
            path.display()
        )),
    }
}

fn page(title: &str, charts: &[String], text: &str) -> String {
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>{}</title>\n\
         <body style=\"font-family: sans-serif; max-width: {WIDTH}px; margin: 2em auto\">\n",
        escaped(title)
    );
    for chart in charts {
        page.push_str(chart);
    }
    // Writing to a String cannot fail.
    let _ = writeln!(
        page,
        "<pre style=\"overflow-x: auto\">{}</pre>\n</body>\n</html>",
        escaped(text)
    );
    page
}

fn stacked(charts: &[String]) -> String {
    let height = HEIGHT * charts.len() as u32;
    let mut svg = format!(
        "<svg width=\"{WIDTH}\" height=\"{height}\" xmlns=\"http://www.w3.org/2000/svg\">\n"
    );
    for (index, chart) in charts.iter().enumerate() {
        let _ = write!(
            svg,
            "<g transform=\"translate(0 {})\">\n{chart}</g>\n",
            HEIGHT * index as u32
        );
    }
    svg.push_str("</svg>\n");
    svg
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// Percentiles spread so that each nine takes the same room: 90, 99, 99.9 and so on.
#[derive(Clone, Copy, Debug)]
struct Nines(f64);

impl Nines {
    fn of(percent: f64) -> f64 {
        let left = (1.0 - percent / 100.0).max(1e-9);
        -left.log10()
    }
}

impl Ranged for Nines {
    type FormatOption = plotters::coord::ranged1d::NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let share = (value / self.0).clamp(0.0, 1.0);
        limit.0 + (share * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _hint: Hint) -> Vec<f64> {
        let whole = (0..=self.0 as u32).map(f64::from);
        std::iter::once(Nines::of(50.0)).chain(whole).collect()
    }

    fn range(&self) -> std::ops::Range<f64> {
        0.0..self.0
    }
}

impl plotters::coord::ranged1d::ValueFormatter<f64> for Nines {
    fn format_ext(&self, value: &f64) -> String {
        let percent = 100.0 * (1.0 - 10_f64.powf(-value));
        format!("{}%", (percent * 1e6).round() / 1e6)
    }
}

fn percentile_chart(title: &str, runs: &[(&str, &Report)]) -> Result<String, Box<dyn Error>> {
    let points = |report: &Report| -> Vec<(f64, f64)> {
        let curve = report
            .percentiles
            .iter()
            .filter(|(percent, _)| *percent < 100.0);
        curve
            .map(|(percent, us)| (Nines::of(*percent), us.max(0.1)))
            .collect()
    };
    let curves: Vec<(&str, Vec<(f64, f64)>)> = runs
        .iter()
        .map(|(name, report)| (*name, points(report)))
        .collect();
    let all = || curves.iter().flat_map(|(_, points)| points);
    let most_nines = all().map(|(nines, _)| *nines).fold(1.0, f64::max);
    let least_us = all()
        .map(|(_, us)| *us)
        .fold(f64::INFINITY, f64::min)
        .min(1e6);
    let most_us = all().map(|(_, us)| *us).fold(1.0, f64::max) * 1.2;
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(
                format!("{title}: latency by percentile"),
                ("sans-serif", 18),
            )
            .margin(12)
            .x_label_area_size(36)
            .y_label_area_size(72)
            .build_cartesian_2d(Nines(most_nines), (least_us..most_us).log_scale())?;
        chart.configure_mesh().y_desc("microseconds").draw()?;
        for ((name, points), color) in curves.iter().zip(COLORS.iter().cycle()) {
            chart
                .draw_series(LineSeries::new(
                    points.iter().copied(),
                    color.stroke_width(2),
                ))?
                .label(*name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], *color));
        }
        if curves.len() > 1 {
            chart
                .configure_series_labels()
                .position(SeriesLabelPosition::UpperLeft)
                .border_style(BLACK)
                .background_style(WHITE)
                .draw()?;
        }
        area.present()?;
    }
    Ok(svg)
}

/// One of a second's latencies.
type Latency = fn(&super::SecondReport) -> f64;

fn timeline_chart(title: &str, report: &Report) -> Result<String, Box<dyn Error>> {
    let seconds = &report.timeline;
    let last = seconds.last().map_or(1, |second| second.second) as f64;
    let most = seconds
        .iter()
        .map(|second| second.requests)
        .max()
        .unwrap_or(1)
        .max(1) as f64;
    let latencies = || {
        seconds
            .iter()
            .flat_map(|it| [it.p50_us, it.p99_us, it.max_us])
    };
    let least_us = latencies().fold(f64::INFINITY, f64::min).clamp(0.1, 1e6);
    let most_us = latencies().fold(1.0, f64::max) * 1.2;
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(
                format!("{title}: rate and latency over time"),
                ("sans-serif", 18),
            )
            .margin(12)
            .x_label_area_size(36)
            .y_label_area_size(72)
            .right_y_label_area_size(72)
            .build_cartesian_2d(0.0..last, 0.0..most * 1.1)?
            .set_secondary_coord(0.0..last, (least_us..most_us).log_scale());
        chart
            .configure_mesh()
            .x_desc("seconds")
            .y_desc("requests per second")
            .draw()?;
        chart
            .configure_secondary_axes()
            .y_desc("microseconds")
            .draw()?;
        let at = |second: &super::SecondReport| second.second as f64;
        let rate = seconds.iter().map(|it| (at(it), it.requests as f64));
        chart
            .draw_series(LineSeries::new(rate, COLORS[0].stroke_width(2)))?
            .label("requests per second")
            .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], COLORS[0]));
        let curves: [(&str, Latency); 3] = [
            ("p50", |it| it.p50_us),
            ("p99", |it| it.p99_us),
            ("max", |it| it.max_us),
        ];
        for ((name, value), color) in curves.into_iter().zip(&COLORS[1..]) {
            let points = seconds.iter().map(|it| (at(it), value(it).max(0.1)));
            chart
                .draw_secondary_series(LineSeries::new(points, color))?
                .label(name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], *color));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .border_style(BLACK)
            .background_style(WHITE)
            .draw()?;
        area.present()?;
    }
    Ok(svg)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_nine_takes_the_same_room() {
        let axis = Nines(4.0);
        let place = |percent| axis.map(&Nines::of(percent), (0, 400));
        assert_eq!(
            [place(0.0), place(90.0), place(99.0), place(99.9)],
            [0, 100, 200, 300]
        );
        use plotters::coord::ranged1d::ValueFormatter as _;
        assert_eq!(axis.format_ext(&2.0), "99%");
        assert_eq!(axis.format_ext(&Nines::of(50.0)), "50%");
        assert_eq!(axis.format_ext(&4.0), "99.99%");
    }

    #[test]
    fn only_two_kinds_of_file_are_drawn() {
        assert!(check_path(Path::new("x.svg")).is_ok() && check_path(Path::new("x.html")).is_ok());
        assert!(check_path(Path::new("x.png")).is_err() && check_path(Path::new("x")).is_err());
    }
}
