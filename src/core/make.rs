//! Makes the calls of clients, in the form that each needs.

use std::sync::atomic::Ordering;

use rpcrdma_engine::{BulkCall, CallRefused, CallTag, ConnectionKey, Context};
use rpcrdma_fabric::interface::Port;

use super::tag_of;
use crate::exchange::{Item, Message, PeerConnection};
use crate::once::{Sent, Servers};

/// As [`make`], so that the call can be made again. It waits if calls of its connection are to be made again, or as many were made
/// since the oldest one under way as the server keeps the replies of.
#[inline(never)]
pub(super) fn make_repeatable<P: Port>(
    core: &mut Context<'_, P>,
    servers: &Servers,
    peer: &PeerConnection,
    message: &mut Message,
    connection: ConnectionKey,
    index: u32,
) -> Result<(), CallRefused> {
    // `peer` may name a connection that has just ended, whose place another has.
    if !core.is_ready(connection) {
        return Err(CallRefused::NotReady);
    }
    let (node, way) = (servers.node(connection), peer.way());
    if let Some(sent) = message.sent {
        // What the server keeps of it would not be found.
        if sent.node != node || !sent.way.is_same(way, node.is_some()) {
            return Err(CallRefused::NotTaken);
        }
        let tag = tag_of(index);
        return core.call_again(sent.xid, |core| make(core, message, connection, tag));
    }
    let kept = servers.calls_max(connection);
    let is_lost = peer.lost.load(Ordering::Relaxed) > 0;
    if is_lost || kept.is_some_and(|kept| peer.span() >= kept) {
        return Err(CallRefused::NoCredit);
    }
    let xid = core.next_xid();
    make(core, message, connection, tag_of(index))?;
    let number = kept.map(|_| peer.begin());
    message.sent = Some(Sent {
        xid,
        node,
        way,
        number,
    });
    // From now on it is for how long the call is made again.
    message.wait_until = 0;
    Ok(())
}

/// Calls as `message` says. Its items are taken out of it when that is accepted, and are there still when not.
#[inline]
pub(super) fn make<P: Port>(
    core: &mut Context<'_, P>,
    message: &mut Message,
    connection: ConnectionKey,
    tag: CallTag,
) -> Result<(), CallRefused> {
    if message.has_extras {
        return make_with_extras(core, message, connection, tag);
    }
    let args = &message.args;
    let write = |space: &mut [u8]| {
        space.copy_from_slice(args);
        args.len()
    };
    core.call_in_place(connection, message.procedure, args.len(), tag, write)
}

/// As [`make`], with what few calls have. A call that is signed is signed anew for each message: a number of RPCSEC_GSS is not
/// used twice.
fn make_with_extras<P: Port>(
    core: &mut Context<'_, P>,
    message: &mut Message,
    connection: ConnectionKey,
    tag: CallTag,
) -> Result<(), CallRefused> {
    if message.signed_mut().is_some() {
        // A call that waits is tried in each poll: it takes no number before it can go, and a verifier takes long to compute.
        if core.credits(connection) == 0 {
            return Err(CallRefused::NoCredit);
        }
        // The first time it is not known yet how long they are; what is no matter of waiting is left to the call itself.
        let tried = make_of_any_length(core, message, connection, None);
        if tried.is_err_and(CallRefused::is_transient) {
            return tried;
        }
        let (xid, procedure) = (core.next_xid(), message.procedure);
        let signed = message.signed_mut().into_iter();
        signed.for_each(|it| it.sign(xid, procedure));
    }
    make_of_any_length(core, message, connection, Some(tag))
}

/// As [`make`], with a credential, bulk data, or longer results than most calls have. What fits no message of version 1 goes
/// in chunks. Without a tag nothing is sent: it says whether the call could go.
fn make_of_any_length<P: Port>(
    core: &mut Context<'_, P>,
    message: &mut Message,
    connection: ConnectionKey,
    tag: Option<CallTag>,
) -> Result<(), CallRefused> {
    let (procedure, args, extras) = (message.procedure, &message.args, message.extras());
    if !extras.items.is_empty() || !extras.expected.is_empty() {
        return make_bulk(core, message, connection, tag);
    }
    let inline_max = core.results_inline_bytes_max(connection);
    if inline_max.is_none_or(|most| extras.reply_bytes_max() <= most) {
        let auth = extras.caller.auth();
        let write = |space: &mut [u8]| {
            space.copy_from_slice(args);
            args.len()
        };
        let made = match tag {
            Some(tag) => {
                core.call_authenticated(connection, procedure, auth, args.len(), tag, write)
            }
            None => core.may_call(connection, procedure, auth, args.len()),
        };
        if inline_max.is_none() || made != Err(CallRefused::TooLong) {
            return made;
        }
    }
    match make_bulk(core, message, connection, tag) {
        // More memory would help, and waiting for some does not.
        Err(CallRefused::NoBulk) => Err(CallRefused::TooLong),
        made => made,
    }
}

fn make_bulk<P: Port>(
    core: &mut Context<'_, P>,
    message: &mut Message,
    connection: ConnectionKey,
    tag: Option<CallTag>,
) -> Result<(), CallRefused> {
    let procedure = message.procedure;
    let args = std::mem::take(&mut message.args);
    let extras = message.extras_mut();
    let reply_bytes_max = extras.reply_bytes_max();
    let auth = extras.caller.auth();
    let mut call = BulkCall::new(procedure, &args);
    (call.credential, call.verifier) = (auth.credential, auth.verifier);
    call.results_bytes_max = reply_bytes_max;
    let mut targets = extras.targets.iter_mut().peekable();
    let mut expected = extras.expected.iter().cloned().enumerate();
    let mut fits =
        expected.try_for_each(
            |(number, result)| match targets.next_if(|(of, _)| *of == number) {
                Some((_, target)) => call.expect_into(result, target),
                None => call.expect(result),
            },
        );
    for (at, item) in &mut extras.items {
        fits = fits.and_then(|()| match item {
            Item::Own(item) => call.add(*at, item),
            Item::Shared(item) => call.add_shared(*at, item),
        });
    }
    let made = match (fits, tag) {
        (Ok(()), Some(tag)) => core.call_bulk(connection, &mut call, tag),
        (Ok(()), None) => core.may_call_bulk(connection, &call),
        (Err(_), _) => Err(CallRefused::TooLong),
    };
    if made.is_err() || tag.is_none() {
        // The items are the message's again. Those that were added last come out first.
        for (number, item) in &mut extras.targets {
            if item.is_empty() {
                *item = call.take_target(*number);
            }
        }
        for (_, item) in extras.items.iter_mut().rev() {
            if let Item::Own(item) = item
                && item.is_empty()
            {
                *item = call.pop().unwrap_or_default();
            }
        }
    }
    message.args = args;
    made
}
