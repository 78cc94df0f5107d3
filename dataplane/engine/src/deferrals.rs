//! Calls of peers that will be answered later.

use rpcrdma_fabric::clock::Ticks;
use rpcrdma_fabric::share::Share;
use rpcrdma_protocol::rpc::Auth;

use crate::ledger::DEFERRED_CALLS;
use crate::rpc::{ConnectionKey, DeferId, DeferToken, ReplyRefused};

/// A call that its service has deferred.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deferred {
    pub(crate) connection: ConnectionKey,
    pub(crate) xid: u32,
    /// When it was found.
    pub(crate) found_at: Ticks,
    /// Its slot among the calls with chunks, if it came with any.
    pub(crate) serve: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    generation: u32,
    call: Option<Deferred>,
    has_verifier: bool,
}

#[derive(Debug)]
pub(crate) struct Deferrals {
    slots: Box<[Slot]>,
    free: Vec<u32>,
    share: Share,
    /// How many each connection has, by its place.
    held: Box<[u32]>,
    /// The verifiers of the replies, by slot, as far as a call with one had the slot.
    verifiers: Vec<Auth>,
}

impl Deferrals {
    /// Places for `deferred_max` calls that `connections` share, and one reserved for each connection.
    pub(crate) fn new(connections: u32, deferred_max: u32) -> Self {
        let guaranteed = connections.saturating_mul(DEFERRED_CALLS);
        let places = guaranteed.saturating_add(deferred_max);
        let slot = Slot {
            generation: 0,
            call: None,
            has_verifier: false,
        };
        Self {
            slots: vec![slot; places as usize].into_boxed_slice(),
            free: (0..places).rev().collect(),
            share: Share::new(places, guaranteed),
            held: vec![0; connections as usize].into_boxed_slice(),
            verifiers: Vec::new(),
        }
    }

    /// How many calls are deferred.
    pub(crate) fn open(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether a call of the connection at `place` is deferred.
    pub(crate) fn has_call_of(&self, place: u32) -> bool {
        self.held.get(place as usize).is_some_and(|held| *held != 0)
    }

    /// For the sums: the share, what each connection has by its place, and the places that are free.
    #[cfg(test)]
    pub(crate) fn ledger(&self) -> (&Share, &[u32], usize) {
        (&self.share, &self.held, self.free.len())
    }

    /// The slot that the next deferred call of the connection at `place` gets.
    #[inline]
    pub(crate) fn next(&self, place: u32) -> Option<DeferId> {
        let held = *self.held.get(place as usize)?;
        if !self.share.may_take(held, DEFERRED_CALLS, 1) {
            return None;
        }
        let slot = *self.free.last()?;
        let generation = self.slots.get(slot as usize)?.generation;
        Some(DeferId { slot, generation })
    }

    /// Puts a call into the slot that [`Deferrals::next`] returned. Its reply gets this verifier in place of AUTH_NONE.
    pub(crate) fn take(&mut self, call: Deferred, verifier: Option<&Auth>) {
        let Some(index) = self.free.pop() else {
            debug_assert!(false, "a slot was free a moment ago");
            return;
        };
        if let Some(slot) = self.slots.get_mut(index as usize) {
            slot.call = Some(call);
            slot.has_verifier = verifier.is_some();
        }
        if let Some(verifier) = verifier {
            self.keep_verifier(index as usize, verifier);
        }
        if let Some(held) = self.held.get_mut(call.connection.index as usize) {
            self.share.take(held, DEFERRED_CALLS);
        }
    }

    /// Few programs give replies verifiers: the first one of a core makes the room for all, and no later one allocates.
    #[cold]
    fn keep_verifier(&mut self, index: usize, verifier: &Auth) {
        self.verifiers.resize(self.slots.len(), Auth::NONE);
        if let Some(place) = self.verifiers.get_mut(index) {
            *place = *verifier;
        }
    }

    /// The verifier of the reply to the call with this token, if it is not AUTH_NONE.
    pub(crate) fn verifier(&self, token: &DeferToken) -> Option<&Auth> {
        let index = token.0.slot as usize;
        let slot = self.slots.get(index).filter(|it| it.has_verifier);
        slot.and_then(|_| self.verifiers.get(index))
    }

    fn slot_mut(&mut self, id: DeferId) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(id.slot as usize);
        slot.filter(|slot| slot.generation == id.generation)
    }

    /// Notes that the call at `id` came with chunks and has slot `serve` among those.
    pub(crate) fn set_serve(&mut self, id: DeferId, serve: u32) {
        if let Some(call) = self.slot_mut(id).and_then(|slot| slot.call.as_mut()) {
            call.serve = Some(serve);
        }
    }

    pub(crate) fn find(&self, token: &DeferToken) -> Result<Deferred, ReplyRefused> {
        self.slots
            .get(token.0.slot as usize)
            .filter(|slot| slot.generation == token.0.generation)
            .and_then(|slot| slot.call)
            .ok_or(ReplyRefused::UnknownToken)
    }

    /// Frees the slot of `token`, whose call was answered.
    pub(crate) fn free(&mut self, token: &DeferToken) {
        let Some(slot) = self.slot_mut(token.0) else {
            return;
        };
        let Some(call) = slot.call.take() else {
            return;
        };
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(token.0.slot);
        if let Some(held) = self.held.get_mut(call.connection.index as usize) {
            self.share.give(held, DEFERRED_CALLS);
        }
    }
}
