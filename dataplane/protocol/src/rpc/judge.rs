//! What becomes of a message that should be a call (RFC 5531 sections 8.2 and 9). Every responder of every transport asks
//! [`judge()`], so that a call has the same fate on all of them.

use super::{
    AcceptStatus, AuthStatus, CallHeader, OpaqueAuth, Programs, RejectStatus, ReplyBody,
    ReplyHeader, auth, peek,
};
use crate::constants::{AUTH_NONE, AUTH_SYS, RPC_VERSION, RPCSEC_GSS};
use crate::error::{DecodeError, Reason};
use crate::form::{CallWords, Pairs};
use crate::rpc::Direction;
use crate::xdr::Reader;

/// Procedure 0, which every program has: it does nothing, takes nothing and returns nothing (RFC 5531 section 12.1).
const NULL_PROCEDURE: u32 = 0;

/// Whether a call of this procedure, with a credential of this flavor, is a null call. A call of procedure 0 with
/// RPCSEC_GSS creates or ends a context (RFC 2203 section 5.2.2): it is none.
#[inline]
#[must_use]
pub const fn is_null_call(procedure: u32, flavor: u32) -> bool {
    procedure == NULL_PROCEDURE && flavor != RPCSEC_GSS
}

/// The octets of a call before its credential.
const CREDENTIAL_AT: usize = 24;

/// What a responder does with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict<'a> {
    /// A program runs the call.
    Call(RoutedCall<'a>),
    /// The reply is a success without results: a call of procedure 0 whose program does not see it.
    Null {
        /// The XID of the call.
        xid: u32,
    },
    /// The call is refused with this reply, which has no results.
    Refuse(ReplyHeader<'static>),
    /// Nothing: it is no call, or has not even an XID and a message type. Count it.
    Ignore,
}

/// A call that a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoutedCall<'a> {
    /// Its header.
    pub header: CallHeader<'a>,
    /// The octets of the header: the arguments begin there.
    pub header_bytes: usize,
    /// The index of its program; 0 if every program is taken.
    pub program: usize,
}

/// Judges a message. The checks come in this order: RPC version, credential and verifier, program, version of the program,
/// flavor, procedure. The first one that fails gives the reply.
///
/// * Of a credential or verifier that cannot be decoded, XID and message type are known: AUTH_ERROR with AUTH_BADCRED
///   or AUTH_BADVERF. So does a header that ends before its credential, and a body of AUTH_SYS that is none.
/// * Procedure 0 is answered with success for AUTH_NONE, whichever flavors the program takes: it never requires
///   authentication, and clients look with it whether a server is there. Its arguments are empty, else GARBAGE_ARGS.
/// * A call of procedure 0 with RPCSEC_GSS creates a context (RFC 2203 section 5.2.2). It has arguments then, and only
///   the program can answer it.
///
/// The verdict depends on the words from the program to the end of the credential, on the length of the verifier, and at
/// procedure 0 on where the arguments end; never on the XID.
// Always: the verdict has the whole header, which would otherwise be written to memory and read again.
#[inline(always)]
#[must_use]
pub fn judge<'a>(message: &'a [u8], programs: &Programs) -> Verdict<'a> {
    let (header, header_bytes) = match CallHeader::decode(message) {
        Ok(decoded) => decoded,
        Err(error) => return undecodable(message, error),
    };
    let args_bytes = message.len().saturating_sub(header_bytes);
    judge_header(header, args_bytes, programs)
}

/// As [`judge()`], for a call whose header was decoded, with so many octets of arguments behind it.
#[inline(always)]
#[must_use]
pub fn judge_header<'a>(
    header: CallHeader<'a>,
    args_bytes: usize,
    programs: &Programs,
) -> Verdict<'a> {
    let xid = header.xid;
    match route(&header, args_bytes, programs) {
        Ok(Route::Program(program)) => Verdict::Call(RoutedCall {
            header_bytes: header.encoded_bytes(),
            header,
            program,
        }),
        Ok(Route::Null) => Verdict::Null { xid },
        Err(refusal) => Verdict::Refuse(refusal.reply(xid)),
    }
}

/// Who answers a call that is not refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// The program of this index runs it.
    Program(usize),
    /// No program sees it: the reply is the success of procedure 0, without results.
    Null,
}

/// The route of the last call of a [form](crate::form): the next one with equal words has it as well.
///
/// It holds as long as the programs do. Only calls with AUTH_NONE are remembered: a credential of AUTH_SYS has to be looked at.
#[derive(Clone, Copy, Debug)]
pub struct LastRoute {
    /// Program and version, procedure and flavor: the second and third pair of the form.
    words: [u64; 2],
    /// Whether it had arguments, which decides about procedure 0.
    has_arguments: bool,
    route: Route,
}

impl LastRoute {
    /// None: no form has a call of this flavor.
    pub const NONE: Self = Self {
        words: [u64::MAX; 2],
        has_arguments: false,
        route: Route::Null,
    };

    /// The route of the call of these words, if the last one had equal ones.
    // Always: it is a few comparisons.
    #[inline(always)]
    #[must_use]
    pub fn find(&self, pairs: &Pairs, arguments: &[u8]) -> Option<Route> {
        let is_equal = ((self.words[0] ^ pairs[1]) | (self.words[1] ^ pairs[2])) == 0;
        let has_arguments = !arguments.is_empty();
        (is_equal && self.has_arguments == has_arguments).then_some(self.route)
    }

    /// Remembers the route of the call of these words.
    #[inline]
    pub fn remember(&mut self, pairs: &Pairs, arguments: &[u8], route: Route) {
        if CallWords::of(pairs).flavor == AUTH_NONE {
            *self = Self {
                words: [pairs[1], pairs[2]],
                has_arguments: !arguments.is_empty(),
                route,
            };
        }
    }
}

/// Why a call is refused.
#[derive(Clone, Copy, Debug)]
enum Refusal {
    Denied(AuthStatus),
    Accepted(AcceptStatus),
}

impl Refusal {
    #[cold]
    const fn reply(self, xid: u32) -> ReplyHeader<'static> {
        match self {
            Self::Denied(status) => deny(xid, RejectStatus::AuthError(status)),
            Self::Accepted(status) => ReplyHeader::accepted(xid, status),
        }
    }
}

#[inline]
fn route(
    header: &CallHeader<'_>,
    args_bytes: usize,
    programs: &Programs,
) -> Result<Route, Refusal> {
    let flavor = header.credential.flavor;
    if flavor == AUTH_SYS && !auth::is_auth_sys(header.credential.body) {
        return Err(Refusal::Denied(AuthStatus::BAD_CREDENTIAL));
    }
    let Some(listed) = programs.listed() else {
        return Ok(Route::Program(0));
    };
    // Few programs: a list is faster than a table.
    let mut numbered = listed.iter().enumerate();
    let Some((index, program)) = numbered.find(|(_, it)| it.number() == header.program) else {
        return Err(Refusal::Accepted(AcceptStatus::ProgUnavail));
    };
    if !program.has_version(header.version) {
        let (low, high) = program.version_range();
        return Err(Refusal::Accepted(AcceptStatus::ProgMismatch { low, high }));
    }
    let is_null = is_null_call(header.procedure, flavor);
    let is_for_anybody = is_null && flavor == AUTH_NONE;
    if !is_for_anybody && !program.takes(flavor) {
        return Err(Refusal::Denied(AuthStatus::TOO_WEAK));
    }
    if is_null {
        if args_bytes != 0 {
            return Err(Refusal::Accepted(AcceptStatus::GarbageArgs));
        }
        if !program.sees_null() {
            return Ok(Route::Null);
        }
    } else if header.procedure != NULL_PROCEDURE
        && !program.has_procedure(header.version, header.procedure)
    {
        return Err(Refusal::Accepted(AcceptStatus::ProcUnavail));
    }
    Ok(Route::Program(index))
}

const fn deny(xid: u32, status: RejectStatus) -> ReplyHeader<'static> {
    ReplyHeader {
        xid,
        body: ReplyBody::Denied(status),
    }
}

/// The verdict on a message whose call header cannot be decoded.
#[cold]
fn undecodable(message: &[u8], error: DecodeError) -> Verdict<'static> {
    let Ok((xid, Direction::Call)) = peek(message) else {
        return Verdict::Ignore;
    };
    if error.reason == Reason::UnsupportedRpcVersion {
        let (low, high) = (RPC_VERSION, RPC_VERSION);
        return Verdict::Refuse(deny(xid, RejectStatus::RpcMismatch { low, high }));
    }
    let mut reader = Reader::new(message.get(CREDENTIAL_AT..).unwrap_or(&[]));
    let status = match OpaqueAuth::decode(&mut reader) {
        Ok(it) if it.flavor != AUTH_SYS || auth::is_auth_sys(it.body) => AuthStatus::BAD_VERIFIER,
        _ => AuthStatus::BAD_CREDENTIAL,
    };
    Verdict::Refuse(deny(xid, RejectStatus::AuthError(status)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::constants::{AUTH_BODY_BYTES_MAX, RPC_CALL, RPC_REPLY};
    use crate::rpc::Program;

    const XID: u32 = 0x7f00_0001;
    const NFS: u32 = 100_003;
    const MOUNT: u32 = 100_005;
    const GSS_INIT: [u32; 5] = [1, 1, 0, 1, 0];

    fn octets(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    /// NFS takes AUTH_SYS alone and has versions 3 and 5; MOUNT takes RPCSEC_GSS too, sees procedure 0, and has procedures
    /// 0 to 5.
    fn programs() -> Programs {
        let mount = Program::new(MOUNT, [3..=3]).with_flavors([AUTH_NONE, AUTH_SYS, RPCSEC_GSS]);
        Programs::new([
            Program::new(NFS, [5..=5, 3..=3]).with_flavors([AUTH_SYS]),
            mount
                .with_null()
                .with_procedures((0..6).map(|number| (3, number))),
        ])
    }

    /// A call with this credential, verifier AUTH_NONE, and arguments.
    fn call(named: [u32; 3], flavor: u32, body: &[u32], args: &[u32]) -> Vec<u8> {
        let [program, version, procedure] = named;
        let bytes = u32::try_from(4 * body.len()).unwrap();
        let head = [XID, RPC_CALL, 2, program, version, procedure, flavor, bytes];
        octets(&[&head[..], body, &[AUTH_NONE, 0], args].concat())
    }

    fn verdict(message: &[u8]) -> Verdict<'_> {
        judge(message, &programs())
    }

    fn accepted(status: AcceptStatus) -> Verdict<'static> {
        Verdict::Refuse(ReplyHeader::accepted(XID, status))
    }

    fn auth_error(status: AuthStatus) -> Verdict<'static> {
        Verdict::Refuse(deny(XID, RejectStatus::AuthError(status)))
    }

    /// A stamp, no name, user, group, no further groups.
    const SYS: [u32; 5] = [9, 0, 0, 0, 0];

    #[test]
    fn call_of_a_program_is_routed_with_its_arguments() {
        let message = call([NFS, 3, 1], AUTH_SYS, &SYS, &[1, 2, 3]);
        let Verdict::Call(routed) = verdict(&message) else {
            panic!("{:?}", verdict(&message));
        };
        assert_eq!(routed.program, 0);
        assert_eq!((routed.header.xid, routed.header.procedure), (XID, 1));
        assert_eq!(message[routed.header_bytes..], octets(&[1, 2, 3]));
        let message = call([MOUNT, 3, 5], AUTH_NONE, &[], &[]);
        assert!(matches!(verdict(&message), Verdict::Call(it) if it.program == 1));
    }

    #[test]
    fn first_check_that_fails_gives_the_reply() {
        let mismatch = AcceptStatus::ProgMismatch { low: 3, high: 5 };
        // Each has every fault of those behind it too.
        let flavor = 99;
        for (named, flavor, body, expected) in [
            (
                [1, 9, 99],
                AUTH_SYS,
                &[][..],
                auth_error(AuthStatus::BAD_CREDENTIAL),
            ),
            ([1, 9, 99], flavor, &[], accepted(AcceptStatus::ProgUnavail)),
            ([NFS, 4, 99], flavor, &[], accepted(mismatch)),
            (
                [MOUNT, 3, 99],
                flavor,
                &[],
                auth_error(AuthStatus::TOO_WEAK),
            ),
            (
                [MOUNT, 3, 6],
                AUTH_NONE,
                &[],
                accepted(AcceptStatus::ProcUnavail),
            ),
        ] {
            let message = call(named, flavor, body, &[]);
            assert_eq!(verdict(&message), expected, "{named:?}");
        }
        let mut other_rpc_version = call([1, 9, 99], AUTH_SYS, &[], &[]);
        other_rpc_version[11] = 3;
        let mismatch = RejectStatus::RpcMismatch { low: 2, high: 2 };
        let denied = Verdict::Refuse(deny(XID, mismatch));
        assert_eq!(verdict(&other_rpc_version), denied);
    }

    #[test]
    fn credential_or_verifier_that_cannot_be_decoded_is_denied() {
        let whole = call([NFS, 3, 1], AUTH_SYS, &SYS, &[]);
        let credential_end = CREDENTIAL_AT + 8 + 4 * SYS.len();
        for end in 8..whole.len() {
            let status = match end {
                // Without an RPC version, too: the caller learns of it from no other reply.
                end if end < credential_end => AuthStatus::BAD_CREDENTIAL,
                _ => AuthStatus::BAD_VERIFIER,
            };
            assert_eq!(verdict(&whole[..end]), auth_error(status), "{end} octets");
        }
        // The credential is looked at first.
        let neither = call([NFS, 3, 1], AUTH_SYS, &[], &[]);
        let bad = auth_error(AuthStatus::BAD_CREDENTIAL);
        assert_eq!(verdict(&neither[..neither.len() - 8]), bad);
        for (at, status) in [
            (CREDENTIAL_AT + 4, AuthStatus::BAD_CREDENTIAL),
            (credential_end + 4, AuthStatus::BAD_VERIFIER),
        ] {
            let longest = u32::try_from(AUTH_BODY_BYTES_MAX).unwrap();
            for bytes in [longest + 1, u32::MAX] {
                let mut message = whole.clone();
                message[at..at + 4].copy_from_slice(&bytes.to_be_bytes());
                message.resize(1000, 0);
                assert_eq!(verdict(&message), auth_error(status), "{bytes} octets");
            }
        }
    }

    #[test]
    fn body_of_auth_sys_is_whole_and_ends() {
        let call_with = |body: &[u32]| verdict_of(&call([MOUNT, 3, 1], AUTH_SYS, body, &[]));
        fn verdict_of(message: &[u8]) -> bool {
            match verdict(message) {
                Verdict::Call(_) => true,
                other => {
                    assert_eq!(other, auth_error(AuthStatus::BAD_CREDENTIAL));
                    false
                }
            }
        }
        assert!(call_with(&SYS));
        // A name of three octets with its padding, and two groups.
        assert!(call_with(&[9, 3, 0x6162_6300, 1, 2, 2, 3, 4]));
        let most: Vec<u32> = [9, 0, 1, 2, 16].into_iter().chain(0..16).collect();
        assert!(call_with(&most));
        let more: Vec<u32> = [9, 0, 1, 2, 17].into_iter().chain(0..17).collect();
        for wrong in [&[][..], &SYS[..4], &[9, 0, 0, 0, 0, 0], &[9, 256, 0], &more] {
            assert!(!call_with(wrong), "{wrong:?}");
        }
    }

    #[test]
    fn procedure_0_never_requires_authentication() {
        let success = Verdict::Null { xid: XID };
        for (flavor, body, args, expected) in [
            (AUTH_NONE, &[][..], &[][..], success),
            (AUTH_SYS, &SYS, &[], success),
            (AUTH_NONE, &[], &[0], accepted(AcceptStatus::GarbageArgs)),
            (AUTH_SYS, &SYS, &[0], accepted(AcceptStatus::GarbageArgs)),
            (
                RPCSEC_GSS,
                &GSS_INIT,
                &[4, 0],
                auth_error(AuthStatus::TOO_WEAK),
            ),
            (99, &[], &[], auth_error(AuthStatus::TOO_WEAK)),
        ] {
            let message = call([NFS, 3, 0], flavor, body, args);
            assert_eq!(verdict(&message), expected, "flavor {flavor}, {args:?}");
        }
        // With AUTH_NONE the program takes no other.
        let other = call([NFS, 3, 1], AUTH_NONE, &[], &[]);
        assert_eq!(verdict(&other), auth_error(AuthStatus::TOO_WEAK));
    }

    #[test]
    fn program_that_wants_procedure_0_sees_it_with_empty_arguments() {
        let message = call([MOUNT, 3, 0], AUTH_NONE, &[], &[]);
        assert!(matches!(verdict(&message), Verdict::Call(_)));
        let message = call([MOUNT, 3, 0], AUTH_SYS, &SYS, &[7]);
        assert_eq!(verdict(&message), accepted(AcceptStatus::GarbageArgs));
        // The token of a context.
        let message = call([MOUNT, 3, 0], RPCSEC_GSS, &GSS_INIT, &[4, 7]);
        assert!(matches!(verdict(&message), Verdict::Call(_)));
    }

    #[test]
    fn messages_that_are_no_calls_are_ignored() {
        let message = call([NFS, 3, 1], AUTH_SYS, &SYS, &[]);
        for end in 0..8 {
            assert_eq!(verdict(&message[..end]), Verdict::Ignore);
        }
        for message_type in [RPC_REPLY, 2, u32::MAX] {
            let mut other = message.clone();
            other[4..8].copy_from_slice(&message_type.to_be_bytes());
            assert_eq!(verdict(&other), Verdict::Ignore);
        }
    }

    #[test]
    fn responder_without_a_list_judges_only_the_header() {
        let judge =
            |message: &[u8]| matches!(judge(message, &Programs::default()), Verdict::Call(_));
        assert!(judge(&call([1, 9, 99], 99, &[], &[])));
        assert!(judge(&call([1, 9, 0], AUTH_NONE, &[], &[1])));
        assert!(!judge(&call([1, 9, 99], AUTH_SYS, &[], &[])));
    }

    /// So a fast path can remember it by the words on which it depends.
    #[test]
    fn verdict_does_not_depend_on_the_xid() {
        for procedure in [0, 1, 9] {
            for flavor in [AUTH_NONE, AUTH_SYS, 99] {
                let message = call([MOUNT, 3, procedure], flavor, &[], &[]);
                let mut other = message.clone();
                other[..4].copy_from_slice(&1_u32.to_be_bytes());
                let kind = |verdict| match verdict {
                    Verdict::Refuse(header) => Some(header.body),
                    _ => None,
                };
                assert_eq!(kind(verdict(&message)), kind(verdict(&other)));
            }
        }
    }

    /// The words of a call, the body of its credential, and its arguments.
    type OfForm = (Pairs, Vec<u8>, Vec<u8>);

    fn calls_of_forms() -> Vec<OfForm> {
        let mut calls = Vec::new();
        for (program, version) in [(MOUNT, 3), (MOUNT, 4), (NFS, 3), (NFS, 5), (1, 3)] {
            for (procedure, flavor) in [0, 1, 9]
                .into_iter()
                .flat_map(|it| [(it, AUTH_NONE), (it, AUTH_SYS)])
            {
                for (body, args) in [&[][..], &SYS]
                    .into_iter()
                    .flat_map(|it| [(it, &[][..]), (it, &[7])])
                {
                    let words = CallWords {
                        xid: XID,
                        credit: 1,
                        program,
                        version,
                        procedure,
                        flavor,
                        credential_bytes: u32::try_from(4 * body.len()).unwrap(),
                        invalidate_handle: 0,
                    };
                    calls.push((words.pairs(), octets(body), octets(args)));
                }
            }
        }
        calls
    }

    fn route_of((pairs, body, args): &OfForm) -> Option<Route> {
        let words = CallWords::of(pairs);
        let header = CallHeader {
            xid: words.xid,
            program: words.program,
            version: words.version,
            procedure: words.procedure,
            credential: OpaqueAuth {
                flavor: words.flavor,
                body,
            },
            verifier: OpaqueAuth::NONE,
        };
        route(&header, args.len(), &programs()).ok()
    }

    #[test]
    fn route_of_the_last_call_is_that_of_every_call_which_finds_it() {
        let calls = calls_of_forms();
        let mut found = 0;
        for last in &calls {
            let mut remembered = LastRoute::NONE;
            let Some(route) = route_of(last) else {
                continue;
            };
            remembered.remember(&last.0, &last.2, route);
            let is_kept = CallWords::of(&last.0).flavor == AUTH_NONE;
            for next in &calls {
                let of_next = remembered.find(&next.0, &next.2);
                assert!(
                    of_next.is_none() || of_next == route_of(next),
                    "{last:?}, then {next:?}"
                );
                assert!(next != last || of_next.is_some() == is_kept, "{last:?}");
                found += usize::from(of_next.is_some());
            }
        }
        assert!(found >= 4, "with and without arguments, and procedure 0");
        let none = calls
            .iter()
            .find_map(|(pairs, _, args)| LastRoute::NONE.find(pairs, args));
        assert_eq!(none, None);
    }
}
