//! The conformance suite of the fabric: what every provider must do, written once over
//! [`Port`](rpcrdma_fabric::interface::Port) and [`Manager`](rpcrdma_fabric::interface::Manager).
//!
//! A provider implements [`Harness`] and calls [`fabric_conformance!`](macro@crate::fabric_conformance):
//! every case of the [list] becomes a test of its own, and one more test names the cases
//! that are skipped, with what the provider lacks for them.
//!
//! Every case ends with a reckoning that is the same for all: each connection is closed, each
//! signalled work request has completed exactly once and before its `Disconnected`, and every
//! buffer and every Receive is back where it came from.

mod cases;
pub mod harness;
#[doc(hidden)]
pub mod list;
mod side;
mod world;

pub use harness::{Extras, Fault, Harness, Need, PortOptions};

/// A case of the suite, for a provider.
struct Case<H> {
    name: &'static str,
    needs: &'static [Need],
    run: fn(H),
}

macro_rules! case_table {
    (; $($module:ident { $(#[test] fn $name:ident() needs [$($need:ident),*];)* })*) => {
        fn table<H: Harness>() -> Vec<Case<H>> {
            vec![$($(Case {
                name: stringify!($name),
                needs: &[$(Need::$need),*],
                run: cases::$module::$name::<H>,
            },)*)*]
        }
    };
}
crate::fabric_conformance_list!([case_table];);

fn missing<H: Harness>(needs: &[Need]) -> Option<&'static str> {
    let attributes = side::attributes::<H>();
    needs
        .iter()
        .find_map(|need| need.missing(&attributes, H::extras()))
}

/// Runs the case `name`, unless the provider lacks what it needs.
///
/// # Panics
///
/// When the case fails, or there is none of that name.
pub fn run<H: Harness>(name: &str) {
    let case = table::<H>()
        .into_iter()
        .find(|case| case.name == name)
        .unwrap_or_else(|| panic!("the suite has no case {name}"));
    if let Some(missing) = missing::<H>(case.needs) {
        println!("skipped {name}: the provider {missing}");
        return;
    }
    (case.run)(H::new());
}

/// Prints what is skipped, and returns the names of the cases that run and of those that do not.
#[must_use]
pub fn survey<H: Harness>() -> (Vec<&'static str>, Vec<&'static str>) {
    let mut run = Vec::new();
    let mut skipped = Vec::new();
    for case in table::<H>() {
        match missing::<H>(case.needs) {
            None => run.push(case.name),
            Some(missing) => {
                println!("skipped {}: the provider {missing}", case.name);
                skipped.push(case.name);
            }
        }
    }
    println!("{} cases run, {} are skipped", run.len(), skipped.len());
    (run, skipped)
}

/// Makes a module of tests of a [`Harness`]: one test per case, and one that fails when a case is
/// skipped that is not named as expected, or when none would run.
///
/// ```text
/// rpcrdma_tests::fabric_conformance!(shm, ShmHarness, skipped []);
/// ```
///
/// A provider of several devices may have a second list, for when a condition holds:
///
/// ```text
/// rpcrdma_tests::fabric_conformance!(verbs, VerbsHarness, skipped [], or where is_iwarp() => [rdma_read]);
/// ```
#[macro_export]
macro_rules! fabric_conformance {
    ($module:ident, $harness:ty, skipped [$($skipped:ident),*]) => {
        $crate::fabric_conformance!($module, $harness, skipped [$($skipped),*], or where false => []);
    };
    (
        $module:ident,
        $harness:ty,
        skipped [$($skipped:ident),*],
        or where $other:expr => [$($other_skipped:ident),*]
    ) => {
        mod $module {
            #[allow(unused_imports, reason = "the harness may be named by a path")]
            use super::*;

            #[test]
            fn skipped_cases_are_those_expected() {
                let (run, skipped) = $crate::fabric_conformance::survey::<$harness>();
                let expected: &[&str] = if $other {
                    &[$(stringify!($other_skipped)),*]
                } else {
                    &[$(stringify!($skipped)),*]
                };
                assert!(!run.is_empty(), "no case would run");
                // A card of tests/lab/as-card lacks more than the device: its scenario counts the cases that run.
                if std::env::var_os("AS_CARD").is_none() {
                    assert_eq!(skipped, expected);
                }
            }

            $crate::fabric_conformance_list!([$crate::fabric_conformance_tests] $harness;);
        }
    };
}

/// The tests of [`fabric_conformance!`](macro@crate::fabric_conformance).
#[doc(hidden)]
#[macro_export]
macro_rules! fabric_conformance_tests {
    ($harness:ty; $($module:ident { $(#[test] fn $name:ident() needs [$($need:ident),*];)* })*) => {
        $(
            mod $module {
                #[allow(unused_imports, reason = "the harness may be named by a path")]
                use super::*;
                $(
                    #[test]
                    fn $name() {
                        $crate::fabric_conformance::run::<$harness>(stringify!($name));
                    }
                )*
            }
        )*
    };
}
