//! Writes the report as text: the findings by area, each with its fix.

use std::fmt::Write as _;

use super::Report;
use super::finding::{Area, Severity};

/// The whole text.
pub(crate) fn of(report: &Report) -> String {
    let mut text = String::new();
    // `writeln!` to a string returns no error.
    let _ = writeln!(text, "for the profile {}", report.profile);
    for area in Area::ALL {
        let mut findings = report
            .findings
            .iter()
            .filter(|finding| finding.area == area)
            .peekable();
        if findings.peek().is_none() {
            continue;
        }
        let _ = writeln!(text, "\n{}", area.name());
        for finding in findings {
            let _ = writeln!(text, "  {:<7}  {}", finding.severity.name(), finding.what);
            if let Some(cost) = &finding.cost {
                let _ = writeln!(text, "             costs: {cost}");
            }
            if let Some(fix) = &finding.fix {
                let _ = writeln!(text, "             what to do: {fix}");
            }
        }
    }
    let _ = writeln!(text, "\n{}", summary(report));
    text
}

fn summary(report: &Report) -> String {
    let counts: Vec<String> = [Severity::Problem, Severity::Warning, Severity::Hint]
        .into_iter()
        .filter_map(|severity| {
            let all = report
                .findings
                .iter()
                .filter(|finding| finding.severity == severity)
                .count();
            let plural = if all == 1 { "" } else { "s" };
            (all > 0).then(|| format!("{all} {}{plural}", severity.name()))
        })
        .collect();
    match (report.severity, counts.join(", ")) {
        (Severity::Problem | Severity::Warning, counts) => counts,
        (Severity::Hint, counts) => format!("nothing stands in the way; {counts}"),
        (Severity::Ok, _) => "nothing stands in the way".to_owned(),
    }
}
