//! The programs of a responder: what each one takes.

use core::ops::RangeInclusive;

use super::{RoutedCall, is_null_call};
use crate::constants::{AUTH_NONE, AUTH_SYS};

/// A program that a responder has, with the calls that it takes. All others are refused before the program sees them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    number: u32,
    /// At least one.
    versions: Box<[RangeInclusive<u32>]>,
    /// `None` if the program judges flavors itself.
    flavors: Option<Box<[u32]>>,
    /// Version and procedure; `None` if the program judges its procedures itself.
    procedures: Option<Box<[(u32, u32)]>>,
    sees_null: bool,
}

impl Program {
    /// A program with the versions of these ranges. It takes credentials of the flavors AUTH_NONE and AUTH_SYS, judges the
    /// numbers of its procedures itself, and does not see procedure 0.
    ///
    /// Without a version, every call gets PROG_MISMATCH of 0 to 0.
    #[must_use]
    pub fn new(number: u32, versions: impl IntoIterator<Item = RangeInclusive<u32>>) -> Self {
        Self {
            number,
            versions: versions.into_iter().collect(),
            flavors: Some(Box::new([AUTH_NONE, AUTH_SYS])),
            procedures: None,
            sees_null: false,
        }
    }

    /// The flavors of the credentials that it takes (RFC 5531 section 8.2). Others get AUTH_TOOWEAK, which tells a client to
    /// try another flavor.
    #[must_use]
    pub fn with_flavors(mut self, flavors: impl IntoIterator<Item = u32>) -> Self {
        self.flavors = Some(flavors.into_iter().collect());
        self
    }

    /// It takes credentials of all flavors, and judges them itself.
    #[must_use]
    pub fn with_any_flavor(mut self) -> Self {
        self.flavors = None;
        self
    }

    /// Its procedures, each with the version that has it. Calls of others get PROC_UNAVAIL.
    #[must_use]
    pub fn with_procedures(mut self, procedures: impl IntoIterator<Item = (u32, u32)>) -> Self {
        self.procedures = Some(procedures.into_iter().collect());
        self
    }

    /// It sees calls of procedure 0 too, which are otherwise answered for it.
    #[must_use]
    pub fn with_null(mut self) -> Self {
        self.sees_null = true;
        self
    }

    /// The number of the program.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The lowest and the highest version, for PROG_MISMATCH.
    pub(super) fn version_range(&self) -> (u32, u32) {
        let low = self.versions.iter().map(|it| *it.start()).min();
        let high = self.versions.iter().map(|it| *it.end()).max();
        (low.unwrap_or(0), high.unwrap_or(0))
    }

    pub(super) fn has_version(&self, version: u32) -> bool {
        self.versions.iter().any(|it| it.contains(&version))
    }

    pub(super) fn takes(&self, flavor: u32) -> bool {
        let listed = self.flavors.as_deref();
        listed.is_none_or(|listed| listed.contains(&flavor))
    }

    pub(super) fn has_procedure(&self, version: u32, procedure: u32) -> bool {
        let listed = self.procedures.as_deref();
        listed.is_none_or(|listed| listed.contains(&(version, procedure)))
    }

    pub(super) fn sees_null(&self) -> bool {
        self.sees_null
    }
}

/// The programs of a responder. The default takes every call whose header and AUTH_SYS credential can be decoded: for a
/// responder that judges the rest itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Programs(Option<Box<[Program]>>);

impl Programs {
    /// These programs and no other. Of two with one number, the first one counts.
    #[must_use]
    pub fn new(programs: impl IntoIterator<Item = Program>) -> Self {
        Self(Some(programs.into_iter().collect()))
    }

    /// The same programs, but each sees procedure 0: for code in front of a responder that has to see all calls.
    #[must_use]
    pub fn with_null(mut self) -> Self {
        for program in self.0.iter_mut().flatten() {
            program.sees_null = true;
        }
        self
    }

    /// How many there are. `None` if every program is taken.
    #[must_use]
    pub fn count(&self) -> Option<usize> {
        self.listed().map(<[Program]>::len)
    }

    /// Whether the program of this number is one of them, in any version.
    #[must_use]
    pub fn has(&self, number: u32) -> bool {
        let listed = self.listed();
        listed.is_none_or(|listed| listed.iter().any(|it| it.number == number))
    }

    /// These programs and, behind them, those of `others`. If one of the two takes every program, so does the sum.
    #[must_use]
    pub fn and(self, others: Self) -> Self {
        let both = self.0.zip(others.0);
        Self(both.map(|(these, those)| these.into_iter().chain(those).collect()))
    }

    /// Whether the program of this index sees procedure 0. True if every program is taken.
    #[must_use]
    pub fn sees_null(&self, index: usize) -> bool {
        let program = self.listed().map(|listed| listed.get(index));
        program.is_none_or(|it| it.is_some_and(Program::sees_null))
    }

    /// Whether this is a null call ([`is_null_call`]), which has no arguments, inside or outside its message. False if every
    /// program is taken: then the responder judges that.
    #[must_use]
    pub fn has_empty_arguments(&self, call: &RoutedCall<'_>) -> bool {
        let header = &call.header;
        self.0.is_some() && is_null_call(header.procedure, header.credential.flavor)
    }

    /// The programs; `None` if every program is taken.
    pub(super) fn listed(&self) -> Option<&[Program]> {
        self.0.as_deref()
    }
}
