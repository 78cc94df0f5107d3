//! The manager's event loop: events of RDMA-CM and of devices, failed queue pairs, resolved names and
//! timers.

use std::time::{Duration, Instant};

use super::client::{Rejection, failure, read_rejection, system};
use super::connection::Side;
use super::machine::{Stage, Step, step};
use super::{CHANNEL, Device, FIRST_DEVICE, LINK_DOWN_AGAIN, LINK_DOWN_HOLD, Manager};
use crate::interface::{ConnectionId, ManagerError, ManagerEvent};
use crate::verbs::cm::event::{Event, EventKind};
use crate::verbs::{Port, PortEvent};
use crate::waiting::turn_until;

/// Events of RDMA-CM that one turn handles, so that a burst does not starve timers and devices. The
/// next turn handles the rest.
const TURN_EVENTS: usize = 256;
/// How often so many are handled before peers are given up.
const TURNS_BEFORE_TIMEOUTS: usize = 16;

impl Manager {
    /// Sets, moves or clears the one timer of a connection.
    pub(super) fn set_timer(&mut self, number: u64, at: Option<Instant>) {
        if let Some(connection) = self.connections.get_mut(&number) {
            self.waiting.set_timer(number, &mut connection.timer, at);
        }
    }

    /// Runs turns until there is an event, the waker is used, or `timeout` expires.
    pub(super) fn run(
        &mut self,
        timeout: Duration,
        events: &mut Vec<ManagerEvent<Port>>,
    ) -> Result<(), ManagerError> {
        let has_events = !self.ready.is_empty();
        turn_until(timeout, has_events, |until| self.turn(until))?;
        events.append(&mut self.ready);
        Ok(())
    }

    /// Sleeps until something happens, at most until `until`, and handles what happened. Returns
    /// whether there is an event to deliver, a device has reported one, or the waker was used.
    fn turn(&mut self, until: Option<Instant>) -> Result<bool, ManagerError> {
        let happened = self
            .waiting
            .sleep(until)
            .map_err(|error| system("waiting for connections", error))?;
        let mut of_devices = false;
        for number in happened.readable {
            match number {
                CHANNEL => _ = self.take_events()?,
                device => of_devices |= self.take_device_events(device - FIRST_DEVICE),
            }
        }
        self.note_downs();
        if happened.woken {
            self.take_from_threads();
            self.disconnect_given_up();
        }
        let now = Instant::now();
        if self.waiting.has_due(now) {
            // A peer that answered while this thread stood still has not timed out. There is an end, so that a flood of
            // requests delays no timeout for ever. An answer to a message that a thread has just sent comes before the
            // thread's word of it: so the threads come last.
            for _ in 0..TURNS_BEFORE_TIMEOUTS {
                if !self.take_events()? {
                    break;
                }
            }
            self.take_from_threads();
        }
        self.fire_timers(now);
        // The counters of a device are read after each wait: its last events are not to wait for the next thing that happens.
        Ok(happened.woken || of_devices || !self.ready.is_empty())
    }

    /// Handles the events of RDMA-CM, at most those of a turn. Returns whether more may wait.
    fn take_events(&mut self) -> Result<bool, ManagerError> {
        for _ in 0..TURN_EVENTS {
            match self.channel.next() {
                Ok(Some(event)) => self.on_event(event),
                Ok(None) => return Ok(false),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(system("reading RDMA-CM's events", error)),
            }
        }
        Ok(true)
    }

    /// Sets the timers of devices of which a link went down. Another manager of the process may have read the event, so this
    /// manager looks at the counts in each turn.
    fn note_downs(&mut self) {
        for device in &mut self.devices {
            let downs = device.context.links_down();
            // The timer that runs is kept: a link that flaps does not put off the look at another one.
            if downs != std::mem::replace(&mut device.downs, downs) && device.timer.is_none() {
                // What was seen last is of an earlier time: this may be a flap.
                device.down.clear();
                let at = Some(Instant::now() + LINK_DOWN_HOLD);
                self.waiting.set_timer(device.number, &mut device.timer, at);
            }
        }
    }

    /// Notes which links of a device are down, and reports the connections that this end requested by them, if there is a link that is
    /// up. As long as there are connections by such a link, it looks again: the other link may come back first, and a connection may just
    /// be established.
    fn look_at_links(&mut self, device: usize, now: Instant) {
        // Once a port, not once a connection: a device may ask its firmware.
        let is_up = |device: &Device, port| device.context.port_mtu(port).is_some();
        let ports = |device: &Device| 1..=device.context.limits().ports;
        let mut devices = self.devices.iter();
        let has_link = devices.any(|it| ports(it).any(|port| is_up(it, port)));
        let Some(device) = self.devices.get_mut(device) else {
            return;
        };
        device.down = ports(device).filter(|port| !is_up(device, *port)).collect();
        let mut are_cut = false;
        for (number, connection) in &self.connections {
            let is_cut = device.has_cut(connection);
            are_cut |= is_cut;
            let is_client = matches!(connection.side, Side::Client(_));
            if is_cut && is_client && has_link && connection.stage == Stage::Established {
                self.ready.push(ManagerEvent::LinkDown {
                    connection: ConnectionId(*number),
                });
            }
        }
        if are_cut {
            let at = Some(now + LINK_DOWN_AGAIN);
            self.waiting.set_timer(device.number, &mut device.timer, at);
        }
    }

    /// Passes the events of a device to its ports. Returns whether there were any.
    fn take_device_events(&mut self, device: u64) -> bool {
        let Some(device) = usize::try_from(device)
            .ok()
            .and_then(|device| self.devices.get(device))
        else {
            return false;
        };
        let Ok(count) = device.context.dispatch_events() else {
            // The device has failed. Its descriptor stays readable and would keep the loop busy.
            let _ = self.waiting.forget(device.context.event_descriptor());
            return false;
        };
        count != 0
    }

    /// Takes what the threads have done that look names up and make calls that block.
    fn take_from_threads(&mut self) {
        while let Some(answer) = self.host_names.answer() {
            self.on_answer(answer);
        }
        while let Some(sent) = self.blocking_calls.sent() {
            self.on_sent(sent);
        }
    }

    /// Disconnects the queue pairs that their ports have put in error.
    fn disconnect_given_up(&mut self) {
        for (port, handle) in &self.ports {
            while let Some(queue_pair) = handle.next_closing() {
                let connection = self
                    .by_queue_pair
                    .get(&(*port, queue_pair))
                    .and_then(|number| self.connections.get_mut(number));
                if let Some(connection) = connection {
                    // The peer's answer is an event. This fails only when the peer has ended the
                    // connection already, which is an event too.
                    let _ = connection.disconnect();
                }
            }
        }
    }

    pub(super) fn fire_timers(&mut self, now: Instant) {
        while let Some(number) = self.waiting.take_due(now) {
            let Some(connection) = self.connections.get_mut(&number) else {
                let device = self.devices.iter().position(|it| it.number == number);
                match device {
                    Some(device) => {
                        self.devices[device].timer = None;
                        self.look_at_links(device, now);
                    }
                    None => self.listen_again(number, now),
                }
                continue;
            };
            connection.timer = None;
            if !connection.stage.waits_for_the_peer() {
                continue;
            }
            self.counters.handshakes_timed_out += 1;
            let patience = self.options.handshake_timeout;
            // The event that RDMA-CM itself reports after its own timeout.
            let timed_out = Event {
                kind: EventKind::Unreachable,
                status: -libc::ETIMEDOUT,
                number,
                parameters: crate::verbs::cm::event::Parameters::default(),
                request: None,
            };
            self.give_up(timed_out, patience);
        }
    }

    /// The peer, the network or the name server did not answer within `patience`.
    fn give_up(&mut self, event: Event, patience: Duration) {
        let number = event.number;
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        if let Side::Client(client) = &mut connection.side {
            // The timeout covers all addresses together, so no further one is tried.
            client.candidates.clear();
        }
        if connection.stage == Stage::ResolvingName {
            let doing = "resolving the host name";
            self.fail(number, |address| ManagerError::System {
                doing: format!(
                    "{doing} of `{address}` took longer than {} ms",
                    patience.as_millis()
                ),
                source: std::io::ErrorKind::TimedOut.into(),
            });
            return;
        }
        self.take_step(event);
    }

    pub(super) fn on_event(&mut self, event: Event) {
        self.cm_events[event.kind.row()] += 1;
        if let Some(id) = event.request {
            return self.on_request(event.number, id, event.parameters);
        }
        if self.listeners.contains_key(&event.number) {
            // Only a listener on an address of the device gets this event. A wildcard listener gets
            // none and keeps listening on the other devices.
            if event.kind == EventKind::DeviceRemoval {
                self.lose_listener(event.number);
            }
            return;
        }
        if let Some(connection) = self.connections.get_mut(&event.number)
            && connection.stage == Stage::Requesting
            && connection.id.is_none()
        {
            connection.early.push(event);
            return;
        }
        self.take_step(event);
    }

    /// Handles an event of a connection by the table in [`step`].
    fn take_step(&mut self, event: Event) {
        let number = event.number;
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        if event.kind == EventKind::Established {
            connection.confirmed();
        }
        let (step, stage) = step(connection.stage, event.kind);
        match step {
            Step::Stay => {}
            Step::ResolveRoute => {
                connection.stage = stage;
                self.resolve_route(number);
            }
            Step::SendRequest => {
                connection.stage = stage;
                self.send_request(number);
            }
            Step::TellReply => {
                connection.stage = stage;
                let peer_address = connection.id.as_ref().and_then(|id| id.peer_address());
                let private_data = event.parameters.private_data.clone();
                connection.peer = event.parameters;
                self.set_timer(number, None);
                self.ready.push(ManagerEvent::ConnectReply {
                    connection: ConnectionId(number),
                    peer: self.peer(peer_address),
                    private_data,
                });
            }
            Step::TellEstablished => {
                connection.stage = stage;
                let port_event = connection
                    .prepared
                    .map(|prepared| PortEvent::Established(prepared.queue_pair));
                self.counters.connections_established += 1;
                self.set_timer(number, None);
                self.ready.push(ManagerEvent::Established {
                    connection: ConnectionId(number),
                    port_event,
                });
            }
            Step::Fail => self.on_failure(number, event.kind, event.status),
            Step::Reject => self.on_rejection(&event),
            Step::Lose => self.lose(number),
            Step::Finish => {
                self.remove(number);
            }
        }
    }

    fn on_failure(&mut self, number: u64, kind: EventKind, status: i32) {
        if let Some(connection) = self.connections.get(&number)
            && let Side::Client(client) = &connection.side
        {
            let error = failure(&client.address, kind, status);
            self.try_next(number, Some(error));
        }
    }

    fn on_rejection(&mut self, event: &Event) {
        let number = event.number;
        let Some(connection) = self.connections.get(&number) else {
            return;
        };
        let Side::Client(client) = &connection.side else {
            return;
        };
        match read_rejection(&client.address, event.status, &event.parameters) {
            Rejection::Otherwise(error) => self.try_next(number, Some(error)),
            Rejection::ByApplication(reason, private_data) => {
                self.counters.connects_rejected_by_peer += 1;
                self.remove(number);
                self.ready.push(ManagerEvent::Rejected {
                    connection: ConnectionId(number),
                    reason,
                    private_data,
                });
            }
        }
    }
}

#[cfg(all(test, not(loom), not(feature = "rdma-sys")))]
mod link_tests {
    use super::*;
    use crate::interface::{DeviceLevels, Manager as _};
    use crate::verbs::PortHandle;
    use crate::verbs::bindings::ibv_event_type;
    use crate::verbs::fake::{Card, Fake};

    /// The link goes down, and the manager learns of it.
    fn goes_down(fake: &Fake, handle: &PortHandle, manager: &mut Manager) {
        fake.set_link(false);
        fake.tell(ibv_event_type::IBV_EVENT_PORT_ERR as u32);
        assert_eq!(handle.context().dispatch_events().expect("events"), 1);
        let waited = manager.wait(Duration::ZERO, &mut Vec::new());
        waited.expect("no failure");
    }

    /// What was seen of a link counts as long as it is down without a break, also if its return was not reported.
    #[test]
    fn link_that_was_down_before_is_not_taken_for_one_that_is() {
        let fake = Fake::install(Card::HONEST);
        let (_port, handle) = fake.port(|_| {});
        let mut manager = Manager::new().expect("a manager");
        manager.know(&handle).expect("a device");
        let levels = |links_up| DeviceLevels {
            name: fake.name().to_owned(),
            links_up,
            links: 1,
            connections: 0,
        };
        assert_eq!(manager.devices(), [levels(1)]);
        // TIME: the test adds what passes until the link is looked at.
        let later = Instant::now() + 2 * LINK_DOWN_HOLD;
        for is_asked in [true, false] {
            goes_down(&fake, &handle, &mut manager);
            assert_eq!(manager.devices(), [levels(0)]);
            assert!(manager.devices[0].down.is_empty(), "it may be a flap");
            manager.fire_timers(later);
            assert_eq!(manager.devices[0].down, [1]);
            assert_eq!(manager.cut_connections(), [], "there are none");
            assert_eq!(manager.devices[0].down, [1]);
            fake.set_link(true);
            if is_asked {
                assert_eq!(manager.cut_connections(), []);
                assert!(manager.devices[0].down.is_empty());
            }
        }
        // A flap, and nobody has asked since the link was down for long.
        goes_down(&fake, &handle, &mut manager);
        assert!(manager.devices[0].down.is_empty());
    }
}
