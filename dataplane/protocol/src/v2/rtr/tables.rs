//! The placement types, and the two tables that say where each is allowed (RTR sections 6.2 and 7.4).

use crate::constants::{
    RTR_TYPE_BY_SIZE, RTR_TYPE_CHOICE, RTR_TYPE_EXPLICIT, RTR_TYPE_NO_ITEM, RTR_TYPE_PLACED,
    RTR_TYPE_TOO_SHORT,
};

/// How an item is, or is to be, placed: xmdp_type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PlacementType {
    /// XMPTYPE_EXRW: by explicit RDMA.
    Explicit,
    /// XMPTYPE_TBSN: by Send, into targetable buffer segments.
    Placed,
    /// XMPTYPE_CHOICE: either; the responder chooses.
    Choice,
    /// XMPTYPE_BYSIZE: either; the length of the item decides.
    BySize,
    /// XMPTYPE_TOOSHORT: not placed, because the item is short.
    TooShort,
    /// XMPTYPE_NOITEM: not placed, because there is no item.
    NoItem,
}

/// Where a placement type is used: the columns of Table 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Context {
    /// In an item of a request.
    RequestItem,
    /// In a direction for the response, in a request.
    ResponseDirection,
    /// In an item of a response.
    ResponseItem,
}

/// A cell of Table 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Validity {
    /// It says where the item is.
    Info,
    /// It directs the responder.
    Direction,
    /// It says how a direction was followed.
    Result,
    /// The XDR type has no such arm. Answered with RDMA2_ERR_BAD_XDR.
    XdrInvalid,
    /// The XDR type has the arm, which makes no sense here. Answered with RDMA2_ERR_BAD_XDR as well.
    SemanticallyInvalid,
}

impl Validity {
    /// Whether the type is allowed there.
    #[must_use]
    pub const fn is_valid(self) -> bool {
        matches!(self, Self::Info | Self::Direction | Self::Result)
    }
}

/// A cell of Table 2: a direction, and how the response answered it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// The response may not answer so.
    Invalid,
    /// No memory was offered: nothing is to be taken back.
    NothingOffered,
    /// The memory that was offered is to be taken back, whether it was used or not.
    TakeBack,
}

impl PlacementType {
    /// All types, in the order of their numbers.
    pub const ALL: [Self; 6] = [
        Self::Explicit,
        Self::Placed,
        Self::Choice,
        Self::BySize,
        Self::TooShort,
        Self::NoItem,
    ];

    /// From the word on the wire.
    #[inline]
    #[must_use]
    pub const fn from_word(word: u32) -> Option<Self> {
        Some(match word {
            RTR_TYPE_EXPLICIT => Self::Explicit,
            RTR_TYPE_PLACED => Self::Placed,
            RTR_TYPE_CHOICE => Self::Choice,
            RTR_TYPE_BY_SIZE => Self::BySize,
            RTR_TYPE_TOO_SHORT => Self::TooShort,
            RTR_TYPE_NO_ITEM => Self::NoItem,
            _ => return None,
        })
    }

    /// The word on the wire.
    #[inline]
    #[must_use]
    pub const fn to_word(self) -> u32 {
        match self {
            Self::Explicit => RTR_TYPE_EXPLICIT,
            Self::Placed => RTR_TYPE_PLACED,
            Self::Choice => RTR_TYPE_CHOICE,
            Self::BySize => RTR_TYPE_BY_SIZE,
            Self::TooShort => RTR_TYPE_TOO_SHORT,
            Self::NoItem => RTR_TYPE_NO_ITEM,
        }
    }

    /// Table 1: whether this type is allowed there.
    #[inline]
    #[must_use]
    pub const fn validity(self, context: Context) -> Validity {
        match (self, context) {
            (Self::Explicit | Self::Placed, Context::RequestItem) => Validity::Info,
            (
                Self::Explicit | Self::Placed | Self::Choice | Self::BySize,
                Context::ResponseDirection,
            ) => Validity::Direction,
            (
                Self::Explicit | Self::Placed | Self::TooShort | Self::NoItem,
                Context::ResponseItem,
            ) => Validity::Result,
            (Self::Choice | Self::BySize, Context::RequestItem | Context::ResponseItem)
            | (Self::TooShort | Self::NoItem, Context::ResponseDirection) => Validity::XdrInvalid,
            (Self::TooShort | Self::NoItem, Context::RequestItem) => Validity::SemanticallyInvalid,
        }
    }

    /// Table 2: what the requester does when the response answers this direction with `result`.
    ///
    /// By the draft there is nothing to take back if a direction of Choice or BySize is answered by Send. But the
    /// requester has offered memory there too, and takes it back. A type that is not a direction, or not a result, is
    /// [`Answer::Invalid`].
    #[must_use]
    pub const fn answered_with(self, result: Self) -> Answer {
        match (self, result) {
            (Self::Placed, Self::Placed | Self::TooShort | Self::NoItem) => Answer::NothingOffered,
            (Self::Explicit, Self::Explicit | Self::TooShort | Self::NoItem)
            | (
                Self::Choice | Self::BySize,
                Self::Explicit | Self::Placed | Self::TooShort | Self::NoItem,
            ) => Answer::TakeBack,
            _ => Answer::Invalid,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Answer, Context, PlacementType as Type, Validity};

    #[test]
    fn words_are_those_of_the_draft() {
        for (word, kind) in (1..=6).zip(Type::ALL) {
            assert_eq!((Type::from_word(word), kind.to_word()), (Some(kind), word));
        }
        for word in [0, 7, 0x0100_0000, u32::MAX] {
            assert_eq!(Type::from_word(word), None);
        }
    }

    #[test]
    fn table_1_cell_by_cell() {
        use Validity::{Direction, Info, Result, SemanticallyInvalid as Sem, XdrInvalid as Xdr};
        #[rustfmt::skip]
        let table = [
            (Type::Explicit, [Info, Direction, Result]),
            (Type::Placed,   [Info, Direction, Result]),
            (Type::BySize,   [Xdr,  Direction, Xdr]),
            (Type::Choice,   [Xdr,  Direction, Xdr]),
            (Type::TooShort, [Sem,  Xdr,       Result]),
            (Type::NoItem,   [Sem,  Xdr,       Result]),
        ];
        for (kind, row) in table {
            for (context, cell) in [
                Context::RequestItem,
                Context::ResponseDirection,
                Context::ResponseItem,
            ]
            .into_iter()
            .zip(row)
            {
                assert_eq!(kind.validity(context), cell, "{kind:?} in {context:?}");
                let is_valid = !matches!(cell, Xdr | Sem);
                assert_eq!(cell.is_valid(), is_valid);
            }
        }
    }

    #[test]
    fn table_2_cell_by_cell() {
        use Answer::{Invalid as Inv, NothingOffered as Ndr, TakeBack as Dr};
        let results = [Type::Explicit, Type::Placed, Type::TooShort, Type::NoItem];
        #[rustfmt::skip]
        let table = [
            (Type::Explicit, [Dr,  Inv, Dr,  Dr]),
            (Type::Placed,   [Inv, Ndr, Ndr, Ndr]),
            // The second cells of these two are not those of the draft: memory was offered.
            (Type::Choice,   [Dr,  Dr,  Dr,  Dr]),
            (Type::BySize,   [Dr,  Dr,  Dr,  Dr]),
        ];
        for (direction, row) in table {
            for (result, cell) in results.into_iter().zip(row) {
                let answer = direction.answered_with(result);
                assert_eq!(answer, cell, "{direction:?} answered with {result:?}");
            }
        }
        for kind in Type::ALL {
            for never in [Type::Choice, Type::BySize] {
                assert_eq!(kind.answered_with(never), Inv, "{never:?} is no result");
            }
            for never in [Type::TooShort, Type::NoItem] {
                assert_eq!(never.answered_with(kind), Inv, "{never:?} is no direction");
            }
        }
    }
}
