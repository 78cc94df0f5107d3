//! The rails of a core as one port.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll;

use super::RAILS_MAX;
use crate::clock::Ticks;
use crate::interface::{
    Access, Attributes, CompletionBatch, Counted, Formed, Forms, Gather, Port, PortNumber,
    PortPoll, PortReceives, PortSends, PortSetup, PortWindows, PostError, QueuePairId, Receive,
    ReceiveQueueAttributes, ReceiveQueueId, RemoteAddress, RemoteKey, SendOptions, SetupError,
    Window, WorkId,
};
use crate::memory::{Buffer, Memory, PageReport, Pool, PoolShape};

/// What belongs to one of the rails.
#[derive(Debug)]
pub struct OnRail<T> {
    /// The number of the rail, from 0.
    pub rail: usize,
    /// What it is.
    pub it: T,
}

/// What the connection manager needs to know of the rails of a core.
#[derive(Clone, Debug)]
pub struct RailsHandle<H>(std::sync::Arc<[H]>);

impl<H> RailsHandle<H> {
    /// The handles of the rails, in their order.
    #[must_use]
    pub fn new(rails: impl IntoIterator<Item = H>) -> Self {
        Self(rails.into_iter().collect())
    }

    /// The rails, in their order.
    #[must_use]
    pub fn rails(&self) -> &[H] {
        &self.0
    }
}

/// Ports of one core on several devices, as one port. See the [module](super).
///
/// The index of a queue pair is its index on its rail, plus a base of the rail.
#[derive(Debug)]
pub struct Rails<P> {
    first: P,
    others: Box<[Rail<P>]>,
    /// Indexes of queue pairs from one rail to the next: a power of two, given by its exponent.
    stride_bits: u32,
    /// Receives that were made for each receive queue, over all rails.
    receives_made: Vec<u32>,
    /// The rail that the next poll begins with.
    polled_first: usize,
    attributes: Attributes,
    /// Becomes readable when the event of any rail does.
    event: OwnedFd,
}

#[derive(Debug)]
struct Rail<P> {
    port: P,
    /// Its number, in the tokens that it makes. Known from its first Receive or window.
    number: Option<PortNumber>,
    /// What its queue pairs' indexes are above.
    base: u32,
}

impl<P: Port> Rails<P> {
    /// Joins ports. All of them have the memory of the first one
    /// ([`Arena::for_another_port`](crate::memory::Arena::for_another_port)), and no receive queue yet.
    ///
    /// # Errors
    ///
    /// [`SetupError::Limit`] without a port, with more than [`RAILS_MAX`], or with too many queue pairs; [`SetupError::System`]
    /// if some share receive queues among connections and others do not, and when no file descriptor is free.
    pub fn new(ports: Vec<P>) -> Result<Self, SetupError> {
        SetupError::check_limits(&[("devices of a node", ports.len() as u64, RAILS_MAX as u64)])?;
        let stride = ports.iter().map(|port| port.attributes().queue_pairs_max);
        let stride = stride.max().unwrap_or(1).next_power_of_two();
        let limit = u32::MAX >> 1;
        let queue_pairs = u64::from(stride) * ports.len() as u64;
        SetupError::check_limits(&[("queue pairs of all devices", queue_pairs, limit.into())])?;
        let attributes = joined(ports.iter().map(PortSetup::attributes), stride)?;
        let event = event_of(&ports).map_err(|source| SetupError::System {
            doing: "the events of several ports could not be joined".to_owned(),
            source,
        })?;
        let mut ports = ports.into_iter();
        let first = ports.next().ok_or(SetupError::Limit {
            what: "devices of a node",
            asked: 0,
            limit: RAILS_MAX as u64,
        })?;
        let bases = (1..).map(|rail| stride * rail);
        let others = ports.zip(bases).map(|(port, base)| Rail {
            port,
            number: None,
            base,
        });
        Ok(Self {
            first,
            others: others.collect(),
            stride_bits: stride.trailing_zeros(),
            receives_made: Vec::new(),
            polled_first: 0,
            attributes,
            event,
        })
    }

    fn count(&self) -> usize {
        1 + self.others.len()
    }

    /// The port of this number, if there is one.
    fn rail_mut(&mut self, rail: usize) -> Option<&mut P> {
        match rail.checked_sub(1) {
            None => Some(&mut self.first),
            Some(other) => self.others.get_mut(other).map(|rail| &mut rail.port),
        }
    }

    fn rails_mut(&mut self) -> impl Iterator<Item = &mut P> {
        let others = self.others.iter_mut().map(|rail| &mut rail.port);
        std::iter::once(&mut self.first).chain(others)
    }

    fn rails(&self) -> impl Iterator<Item = &P> {
        let others = self.others.iter().map(|rail| &rail.port);
        std::iter::once(&self.first).chain(others)
    }

    /// The rail of a queue pair, and the name of the queue pair there. A name of no rail goes to the first, which does not
    /// know it.
    #[inline]
    fn of(&mut self, queue_pair: QueuePairId) -> (&mut P, QueuePairId) {
        let rail = (queue_pair.index >> self.stride_bits) as usize;
        let other = rail.checked_sub(1);
        match other.and_then(|other| self.others.get_mut(other)) {
            Some(rail) => {
                let index = queue_pair.index - rail.base;
                (
                    &mut rail.port,
                    QueuePairId {
                        index,
                        ..queue_pair
                    },
                )
            }
            None => (&mut self.first, queue_pair),
        }
    }

    /// The rail whose tokens carry `number`; the first, which refuses them, for tokens of another core.
    #[inline]
    fn of_token(&self, number: PortNumber) -> &P {
        let mut others = self.others.iter();
        let other = others.find(|rail| rail.number == Some(number));
        other.map_or(&self.first, |rail| &rail.port)
    }

    /// As [`Rails::of_token`].
    #[inline]
    fn of_token_mut(&mut self, number: PortNumber) -> &mut P {
        let mut others = self.others.iter_mut();
        let other = others.find(|rail| rail.number == Some(number));
        other.map_or(&mut self.first, |rail| &mut rail.port)
    }

    /// Takes the events of removed devices off the joined one: they stay readable for ever, and no core would sleep any more.
    fn forget_dead_events(&self) {
        // On the stack: a core that wakes allocates nothing.
        let mut room = [const { MaybeUninit::uninit() }; RAILS_MAX];
        let now = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let Ok((events, _)) = epoll::wait(&self.event, &mut room, Some(&now)) else {
            return;
        };
        for event in events {
            let flags = event.flags;
            let rail = usize::try_from(event.data.u64()).ok();
            if flags.contains(epoll::EventFlags::ERR)
                && let Some(port) = rail.and_then(|rail| self.rails().nth(rail))
            {
                // It fails only if it was done before.
                let _ = epoll::delete(&self.event, port.event());
            }
        }
    }

    /// Polls one rail.
    #[inline]
    fn poll_rail(&mut self, rail: usize, now: Ticks, batch: &mut CompletionBatch) -> bool {
        let Some(other) = rail.checked_sub(1) else {
            return self.first.poll(now, batch);
        };
        let Some(rail) = self.others.get_mut(other) else {
            return false;
        };
        let from = batch.next_place();
        let moved = rail.port.poll(now, batch);
        batch.renumber(from, rail.base);
        moved
    }
}

/// What all rails can do.
fn joined<'a>(
    rails: impl Iterator<Item = &'a Attributes> + Clone,
    stride: u32,
) -> Result<Attributes, SetupError> {
    let least = |what: fn(&Attributes) -> u32| rails.clone().map(what).min().unwrap_or(0);
    let most = |what: fn(&Attributes) -> u32| rails.clone().map(what).max().unwrap_or(0);
    let all = |has: fn(&Attributes) -> bool| rails.clone().all(has);
    let any = |has: fn(&Attributes) -> bool| rails.clone().any(has);
    if any(|it| it.shared_receive_queue) && !all(|it| it.shared_receive_queue) {
        return Err(SetupError::System {
            doing: "some devices of the node lack shared receive queues, so no connection may use them: set \
                    receive_queues to own"
                .to_owned(),
            source: std::io::ErrorKind::Unsupported.into(),
        });
    }
    let devices: Vec<&str> = rails.clone().map(|it| it.device.as_str()).collect();
    let count = u32::try_from(devices.len()).unwrap_or(u32::MAX);
    let mut refused = rails.clone().map(|it| &it.thread_domain_refused);
    Ok(Attributes {
        provider: rails.clone().next().map_or("", |it| it.provider),
        device: devices.join(","),
        rails: count,
        queue_pairs_max: stride.saturating_mul(count),
        receive_queue_depth_max: least(|it| it.receive_queue_depth_max),
        receive_segments_max: least(|it| it.receive_segments_max),
        send_segments_max: least(|it| it.send_segments_max),
        send_queue_depth_max: least(|it| it.send_queue_depth_max),
        inline_bytes_max: least(|it| it.inline_bytes_max),
        message_bytes_max: least(|it| it.message_bytes_max),
        // A rail refuses what its device cannot do, for each queue pair. The others are as fast as without it.
        read_depth_max: most(|it| it.read_depth_max),
        windows_max: least(|it| it.windows_max),
        shared_receive_queue: all(|it| it.shared_receive_queue),
        send_with_invalidate: all(|it| it.send_with_invalidate),
        thread_domain_refused: refused.find_map(Clone::clone),
    })
}

/// A descriptor that becomes readable when the event of any port does.
fn event_of<P: Port>(ports: &[P]) -> std::io::Result<OwnedFd> {
    let joined = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (port, number) in ports.iter().zip(0..) {
        let data = epoll::EventData::new_u64(number);
        epoll::add(&joined, port.event(), data, epoll::EventFlags::IN)?;
    }
    Ok(joined)
}

impl<P: Port> PortSetup for Rails<P> {
    type PreparedQueuePair = OnRail<P::PreparedQueuePair>;

    type PortEvent = OnRail<P::PortEvent>;

    fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    fn memory(&self) -> &Memory {
        self.first.memory()
    }

    fn carve(&mut self, shape: PoolShape) -> Result<Pool, SetupError> {
        self.first.carve(shape)
    }

    fn carve_untouched(&mut self, shape: PoolShape) -> Result<Option<Pool>, SetupError> {
        self.first.carve_untouched(shape)
    }

    fn page_report(&self) -> &PageReport {
        self.first.page_report()
    }

    fn set_forms(&mut self, forms: Forms) {
        self.rails_mut().for_each(|port| port.set_forms(forms));
    }

    /// Makes a receive queue of this depth on each rail. All have the same number.
    fn create_receive_queue(
        &mut self,
        attributes: ReceiveQueueAttributes,
    ) -> Result<ReceiveQueueId, SetupError> {
        let made = self.first.create_receive_queue(attributes)?;
        for rail in &mut self.others {
            let other = rail.port.create_receive_queue(attributes)?;
            debug_assert_eq!(other, made, "ports number their queues from 0");
        }
        self.receives_made.push(0);
        Ok(made)
    }

    /// Makes the Receives of a queue on the rails in turn. Each rail has the depth of the queue.
    fn create_receive(
        &mut self,
        queue: ReceiveQueueId,
        segments: &mut dyn Iterator<Item = Buffer>,
    ) -> Result<Receive, SetupError> {
        let count = self.count();
        let made = self.receives_made.get_mut(usize::from(queue.0));
        // The first rail names what is wrong with a queue that does not exist.
        let rail = made.as_ref().map_or(0, |made| **made as usize % count);
        if let Some(made) = made {
            *made += 1;
        }
        let Some(rail) = rail.checked_sub(1).and_then(|it| self.others.get_mut(it)) else {
            return self.first.create_receive(queue, segments);
        };
        let receive = rail.port.create_receive(queue, segments)?;
        rail.number = Some(receive.port);
        Ok(receive)
    }

    fn adopt_queue_pair(
        &mut self,
        prepared: Self::PreparedQueuePair,
        queue: ReceiveQueueId,
    ) -> Result<QueuePairId, SetupError> {
        let OnRail { rail, it } = prepared;
        match rail.checked_sub(1).and_then(|it| self.others.get_mut(it)) {
            None => self.first.adopt_queue_pair(it, queue),
            Some(rail) => {
                let adopted = rail.port.adopt_queue_pair(it, queue)?;
                let index = adopted.index + rail.base;
                Ok(QueuePairId { index, ..adopted })
            }
        }
    }

    fn handle_event(&mut self, port_event: Self::PortEvent) {
        let OnRail { rail, it } = port_event;
        if let Some(port) = self.rail_mut(rail) {
            port.handle_event(it);
        }
    }

    fn disconnect(&mut self, queue_pair: QueuePairId) {
        let (port, queue_pair) = self.of(queue_pair);
        port.disconnect(queue_pair);
    }

    fn destroy_queue_pair(&mut self, queue_pair: QueuePairId) {
        let (port, queue_pair) = self.of(queue_pair);
        port.destroy_queue_pair(queue_pair);
    }
}

impl<P: Port> PortReceives for Rails<P> {
    #[inline]
    fn post_receive(&mut self, receive: Receive) -> Option<Receive> {
        self.of_token_mut(receive.port).post_receive(receive)
    }

    #[inline]
    fn flush_receives(&mut self) {
        self.rails_mut().for_each(PortReceives::flush_receives);
    }

    /// Of a queue that connections share, the fewest of any rail: so many are there whichever rail a connection uses. A queue of
    /// one connection counts on the rail of that connection alone.
    fn receives_posted(&self, queue: ReceiveQueueId) -> u32 {
        let posted = self.rails().map(|port| port.receives_posted(queue));
        let posted = match self.attributes.shared_receive_queue {
            true => posted.min(),
            false => posted.max(),
        };
        posted.unwrap_or(0)
    }

    #[inline]
    fn received(&self, receive: &Receive) -> &[u8] {
        self.of_token(receive.port).received(receive)
    }

    #[inline]
    fn received_segment(&self, receive: &Receive, index: usize) -> Option<&[u8]> {
        self.of_token(receive.port).received_segment(receive, index)
    }

    fn replace_segment(
        &mut self,
        receive: &mut Receive,
        index: usize,
        fresh: Buffer,
    ) -> Result<Buffer, Buffer> {
        let port = self.of_token_mut(receive.port);
        port.replace_segment(receive, index, fresh)
    }
}

impl<P: Port> PortSends for Rails<P> {
    #[inline]
    fn post_send_copied(
        &mut self,
        queue_pair: QueuePairId,
        source: &Buffer,
        bytes: u32,
        options: SendOptions,
    ) -> Result<(), PostError> {
        let (port, queue_pair) = self.of(queue_pair);
        port.post_send_copied(queue_pair, source, bytes, options)
    }

    #[inline]
    fn post_formed(&mut self, queue_pair: QueuePairId, formed: &Formed, rest: [&[u8]; 2]) -> bool {
        let (port, queue_pair) = self.of(queue_pair);
        port.post_formed(queue_pair, formed, rest)
    }

    #[inline]
    fn post_send(
        &mut self,
        queue_pair: QueuePairId,
        list: &mut Gather,
        options: SendOptions,
    ) -> Result<(), PostError> {
        let (port, queue_pair) = self.of(queue_pair);
        port.post_send(queue_pair, list, options)
    }

    fn post_read(
        &mut self,
        queue_pair: QueuePairId,
        list: Gather,
        from: RemoteAddress,
        work: WorkId,
    ) -> Result<(), (PostError, Gather)> {
        let (port, queue_pair) = self.of(queue_pair);
        port.post_read(queue_pair, list, from, work)
    }

    fn post_write(
        &mut self,
        queue_pair: QueuePairId,
        list: &mut Gather,
        to: RemoteAddress,
        signalled: Option<WorkId>,
    ) -> Result<(), PostError> {
        let (port, queue_pair) = self.of(queue_pair);
        port.post_write(queue_pair, list, to, signalled)
    }

    fn probe(&mut self, queue_pair: QueuePairId, work: WorkId) -> Result<(), PostError> {
        let (port, queue_pair) = self.of(queue_pair);
        port.probe(queue_pair, work)
    }

    fn oldest_work(&mut self, queue_pair: QueuePairId) -> Option<u64> {
        let (port, queue_pair) = self.of(queue_pair);
        port.oldest_work(queue_pair)
    }

    #[inline]
    fn flush_sends(&mut self) {
        self.rails_mut().for_each(PortSends::flush_sends);
    }

    #[inline]
    fn next_returned(&mut self) -> Option<Buffer> {
        self.rails_mut().find_map(PortSends::next_returned)
    }
}

impl<P: Port> PortWindows for Rails<P> {
    fn bind_window(
        &mut self,
        queue_pair: QueuePairId,
        buffer: Buffer,
        bytes: u32,
        access: Access,
    ) -> Result<Window, (PostError, Buffer)> {
        let rail = (queue_pair.index >> self.stride_bits) as usize;
        let (port, queue_pair) = self.of(queue_pair);
        let bound = port.bind_window(queue_pair, buffer, bytes, access)?;
        if let Some(rail) = rail.checked_sub(1).and_then(|it| self.others.get_mut(it)) {
            rail.number = Some(bound.port);
        }
        Ok(bound)
    }

    fn invalidate_window(
        &mut self,
        window: Window,
        work: WorkId,
    ) -> Result<(), (PostError, Window)> {
        self.of_token_mut(window.port)
            .invalidate_window(window, work)
    }

    fn close_window(&mut self, window: Window) -> Result<Buffer, Window> {
        self.of_token_mut(window.port).close_window(window)
    }

    fn window_has_key(&self, window: &Window, key: RemoteKey) -> bool {
        self.of_token(window.port).window_has_key(window, key)
    }
}

impl<P: Port> PortPoll for Rails<P> {
    /// Polls all rails. Each poll begins with another one: a rail that fills every batch keeps none waiting.
    #[inline]
    fn poll(&mut self, now: Ticks, batch: &mut CompletionBatch) -> bool {
        let count = self.count();
        let first = self.polled_first;
        self.polled_first = if first + 1 < count { first + 1 } else { 0 };
        let mut moved = false;
        for rail in (first..count).chain(0..first) {
            if batch.is_full() {
                return true;
            }
            moved |= self.poll_rail(rail, now, batch);
        }
        moved
    }

    fn prepare_to_park(&mut self) -> bool {
        let mut announced = 0;
        for port in self.rails_mut() {
            if !port.prepare_to_park() {
                break;
            }
            announced += 1;
        }
        let may_park = announced == self.count();
        if !may_park {
            // One rail has work: the others take their announcements back.
            self.rails_mut().take(announced).for_each(PortPoll::unpark);
        }
        may_park
    }

    fn waits_unnotified(&self) -> bool {
        self.rails().any(PortPoll::waits_unnotified)
    }

    fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    fn unpark(&mut self) {
        self.rails_mut().for_each(PortPoll::unpark);
        self.forget_dead_events();
    }

    fn receiver_not_ready(&self) -> u64 {
        self.rails().map(PortPoll::receiver_not_ready).sum()
    }

    /// The sums over the rails.
    fn each_counter(&self, each: &mut dyn FnMut(Counted)) {
        let mut index = 0;
        self.first.each_counter(&mut |mut counted| {
            for rail in &self.others {
                let mut at = 0;
                // All rails have the same counters in the same order.
                rail.port.each_counter(&mut |other| {
                    if at == index {
                        counted.value += other.value;
                    }
                    at += 1;
                });
            }
            index += 1;
            each(counted);
        });
    }
}
