//! The common parts of reports: figures, tables, pages, and output files.
//!
//! The report of `run` is in `run/report`, the report of `nfs` in `nfs_client/report.rs`.

pub(crate) mod chart;
pub(crate) mod climb;
pub(crate) mod escape;
pub(crate) mod figures;
pub(crate) mod finish;
pub(crate) mod hgrm;
pub(crate) mod hlog;
pub(crate) mod knee;
pub(crate) mod metric;
pub(crate) mod origin;
pub(crate) mod output;
pub(crate) mod page;
pub(crate) mod saved;
pub(crate) mod table;
pub(crate) mod view;
pub(crate) mod whole;

/// A word of a report: one of this program, or one that was read from JSON.
pub(crate) type Word = std::borrow::Cow<'static, str>;
