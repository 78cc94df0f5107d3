//! The combinations of a sweep.

use serde::{Deserialize, Serialize};

use crate::workloads::bench::op::{Op, Placement};
use rpcrdma_units::{rate, size};

/// One combination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Point {
    /// The procedure.
    pub op: Op,
    /// Payload of one operation; `None` is the default of the procedure.
    #[serde(rename = "size_bytes")]
    pub size: Option<u64>,
    /// How payloads travel.
    pub placement: Placement,
    /// Calls outstanding on each connection.
    pub depth: u32,
    /// Connections that carry calls.
    pub connections: u32,
    /// Calls per second of an open loop; `None` is a closed one.
    #[serde(rename = "offered_rate_per_s")]
    pub rate_per_s: Option<u64>,
}

/// The parameters in which points of a sweep may differ.
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
    /// All axes, in the order of the table.
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

    /// The point's value on this axis, for the terminal.
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

    /// The value, with the axis name if the value alone is not clear.
    #[must_use]
    pub(crate) fn label(self, point: &Point) -> String {
        let text = self.text(point);
        match self {
            Self::Op | Self::Placement => text,
            _ => format!("{} {text}", self.name()),
        }
    }

    /// The point's value as a number; `None` on an axis without numbers.
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

    /// The axes on which the points differ.
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

impl Point {
    /// The point's values on these axes: `write, size 4 KiB, depth 8`.
    #[must_use]
    pub(crate) fn label(&self, axes: &[Axis]) -> String {
        let labels: Vec<String> = axes.iter().map(|axis| axis.label(self)).collect();
        labels.join(", ")
    }
}

/// The names of combinations, by the axes on which they differ.
pub(crate) fn labels(points: &[Point]) -> Vec<String> {
    let axes = Axis::varied(points);
    let label = |point: &Point| match point.label(&axes) {
        label if label.is_empty() => point.op.name().to_owned(),
        label => label,
    };
    points.iter().map(label).collect()
}
