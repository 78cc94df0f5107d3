//! The combinations of a sweep.

use std::time::Duration;

use crate::commands::{Op, OutputArgs, Placement, RunArgs, SweepArgs};
use crate::exit::Failure;
use rpcrdma_units::{rate, size};

/// The most runs of one sweep.
const RUNS_MAX: usize = 10_000;

/// One combination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    /// The procedure.
    pub op: Op,
    /// Payload of one operation; `None` is the default of the procedure.
    pub size: Option<u64>,
    /// How payloads travel.
    pub placement: Placement,
    /// Calls outstanding on each connection.
    pub depth: u32,
    /// Connections that carry calls.
    pub connections: u32,
    /// Calls per second of an open loop; `None` is a closed one.
    pub rate_per_s: Option<u64>,
}

/// What points of a sweep may differ in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Axis {
    /// The procedure.
    Op,
    /// Payload of one operation.
    Size,
    /// How payloads travel.
    Placement,
    /// Calls outstanding on each connection.
    Depth,
    /// Connections that carry calls.
    Connections,
    /// Calls per second of an open loop.
    Rate,
}

impl Axis {
    /// All of them, in the order of a table.
    pub(crate) const ALL: [Self; 6] = [
        Self::Op,
        Self::Size,
        Self::Placement,
        Self::Depth,
        Self::Connections,
        Self::Rate,
    ];

    /// The heading in tables.
    #[must_use]
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Op => "op",
            Self::Size => "size",
            Self::Placement => "placement",
            Self::Depth => "depth",
            Self::Connections => "connections",
            Self::Rate => "offered",
        }
    }

    /// What a point is on it, for people.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "a rate")]
    pub(crate) fn text(self, point: &Point) -> String {
        match self {
            Self::Op => point.op.name().to_owned(),
            Self::Size => point.size.map_or_else(|| "default".to_owned(), size),
            Self::Placement => point.placement.name().to_owned(),
            Self::Depth => point.depth.to_string(),
            Self::Connections => point.connections.to_string(),
            Self::Rate => point
                .rate_per_s
                .map_or_else(|| "closed".to_owned(), |per_s| rate(per_s as f64)),
        }
    }

    /// The same with its name, where the value alone says too little.
    #[must_use]
    pub(crate) fn label(self, point: &Point) -> String {
        let text = self.text(point);
        match self {
            Self::Op | Self::Placement => text,
            _ => format!("{} {text}", self.name()),
        }
    }

    /// What a point is on it, as a number; `None` on an axis that has none.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "a place in a picture")]
    pub(crate) fn number(self, point: &Point) -> Option<f64> {
        match self {
            Self::Op | Self::Placement => None,
            Self::Size => point.size.map(|bytes| bytes as f64),
            Self::Depth => Some(point.depth.into()),
            Self::Connections => Some(point.connections.into()),
            Self::Rate => point.rate_per_s.map(|per_s| per_s as f64),
        }
    }

    /// Those on which the points differ.
    #[must_use]
    pub(crate) fn varied(points: &[Point]) -> Vec<Self> {
        let differ = |axis: &Self| {
            let mut texts = points.iter().map(|point| axis.text(point));
            let first = texts.next();
            texts.any(|text| Some(text) != first)
        };
        Self::ALL.into_iter().filter(differ).collect()
    }
}

/// Every combination of the lists; what stands in a list twice counts once.
///
/// # Errors
/// A usage failure when there are more runs than anybody waits for.
pub(crate) fn points(args: &SweepArgs) -> Result<Vec<Point>, Failure> {
    let sizes = options(&args.size);
    let rates = options(&args.rate);
    let lengths = [
        args.op.len(),
        sizes.len(),
        args.placement.len(),
        args.depth.len(),
        args.connections.len(),
        rates.len(),
        usize::try_from(args.repeats).unwrap_or(usize::MAX),
    ];
    let runs = lengths.into_iter().fold(1, usize::saturating_mul);
    if runs > RUNS_MAX {
        return Err(Failure::usage(format!("these are {runs} runs"))
            .advice(format!("make the lists shorter: {RUNS_MAX} runs at most")));
    }
    let mut points = Vec::new();
    for &op in &args.op {
        for &size in &sizes {
            for &placement in &args.placement {
                for &depth in &args.depth {
                    for &connections in &args.connections {
                        for &rate_per_s in &rates {
                            let point = Point {
                                op,
                                size,
                                placement,
                                depth,
                                connections,
                                rate_per_s,
                            };
                            if !points.contains(&point) {
                                points.push(point);
                            }
                        }
                    }
                }
            }
        }
    }
    Ok(points)
}

fn options(list: &[u64]) -> Vec<Option<u64>> {
    if list.is_empty() {
        vec![None]
    } else {
        list.iter().copied().map(Some).collect()
    }
}

impl Point {
    /// What `run` would be told for it.
    #[must_use]
    pub(crate) fn run_args(&self, args: &SweepArgs) -> RunArgs {
        RunArgs {
            op: self.op,
            size: self.size,
            placement: self.placement,
            depth: self.depth,
            connections: self.connections,
            rate: self.rate_per_s,
            to_knee: false,
            retry: Duration::ZERO,
            reverse: false,
            common: args.common.clone(),
            sizes: None,
            output: OutputArgs::default(),
        }
    }

    /// The point by these axes: `write, size 4 KiB, depth 8`.
    #[must_use]
    pub(crate) fn label(&self, axes: &[Axis]) -> String {
        let labels: Vec<String> = axes.iter().map(|axis| axis.label(self)).collect();
        labels.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::args;
    use super::*;
    use rpcrdma_testkit::CheckWords;

    #[test]
    fn every_combination_is_there_once() {
        let sweep = args("--op read,write --size 1k,4k,1k --placement send,rdma --depth 1,8");
        let points = points(&sweep).unwrap();
        assert_eq!(points.len(), 2 * 2 * 2 * 2);
        assert_eq!(
            Axis::varied(&points),
            [Axis::Op, Axis::Size, Axis::Placement, Axis::Depth]
        );
        assert_eq!(
            points[0].label(&Axis::varied(&points)),
            "read, size 1 KiB, send, depth 1"
        );
        assert_eq!(Axis::Size.number(&points[0]), Some(1024.0));
        let run = points[15].run_args(&sweep);
        assert_eq!((run.op, run.size, run.depth), (Op::Write, Some(4096), 8));
    }

    #[test]
    fn a_bare_sweep_is_one_point() {
        let points = points(&args("")).unwrap();
        assert_eq!(points.len(), 1);
        assert!(Axis::varied(&points).is_empty());
        assert_eq!(Axis::Rate.text(&points[0]), "closed");
    }

    #[test]
    fn too_many_runs_are_refused() {
        let list = (1..200)
            .map(|n| n.to_string())
            .collect::<Vec<_>>()
            .join(",");
        let failure = points(&args(&format!("--depth {list} --connections {list}"))).unwrap_err();
        failure.check_words(&["10000 runs at most"]);
    }
}
