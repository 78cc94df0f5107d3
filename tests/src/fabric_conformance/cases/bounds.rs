//! What one poll does at most, and how a core that sleeps is woken.

use std::time::Duration;

use rpcrdma_fabric::interface::prelude::*;
use rpcrdma_fabric::interface::{
    Completion, CompletionBatch, CompletionKind, Port, REAP_USUAL, Status,
};
use rpcrdma_testkit::{PATIENCE, Wait};
use rustix::event::{PollFd, PollFlags, Timespec};

use super::super::harness::Harness;
use super::super::world::{CLIENT, HUGE_BYTES, READ, SERVER, SMALL_BYTES, Side, World, pattern};

/// With more to reap than a batch holds, each poll yields a batch at most, and all come.
pub(in super::super) fn poll_yields_at_most_eight<H: Harness>(harness: H) {
    let (mut world, link) = World::connected(harness);
    world.server().post_receives(64, &[SMALL_BYTES]);
    let sent = 40;
    for seed in 0..sent {
        world.send_copied(CLIENT, link, &pattern(seed, 24));
    }
    world.turn_of(CLIENT);
    let mut arrived = 0;
    let wait = Wait::begin("all messages");
    while arrived < sent {
        wait.look(|| format!("{arrived} of {sent}"));
        let count = world.turn_of(SERVER);
        assert!(count <= REAP_USUAL);
        while let Some(completion) = world.server().take_completion(|_| true) {
            let arrival = world.server().arrival(completion);
            assert_eq!(arrival.data, pattern(arrived, 24));
            arrived += 1;
        }
        world.turn_of(CLIENT);
    }
    world.finish();
}

/// A batch that has no room gets nothing, and nothing is lost by it.
pub(in super::super) fn a_full_batch_loses_nothing<H: Harness>(harness: H) {
    let (mut world, link) = World::joined(harness);
    let data = pattern(1, 800);
    let work = world.send_signalled(link, &[&data]);
    world.turn_of(CLIENT);
    for room in [0, 1] {
        for who in [SERVER, CLIENT, SERVER, CLIENT] {
            let mut batch = CompletionBatch::new();
            for _ in room..REAP_USUAL {
                batch
                    .push(Completion {
                        queue_pair: link.queue_pairs[who],
                        status: Status::Injected,
                        kind: CompletionKind::Disconnected,
                    })
                    .expect("the batch has room");
            }
            let now = world.harness.now();
            let side = &mut world.sides[who];
            side.port.poll(now, &mut batch);
            side.port.flush_sends();
            for completion in batch.drain() {
                if completion.status != Status::Injected {
                    side.note(completion);
                }
            }
        }
    }
    world.expect(SERVER, link, &data);
    assert_eq!(world.finished(CLIENT, work).0, Status::Success);
    world.finish();
}

/// A long message is moved in steps, so that other connections are not kept waiting for it.
pub(in super::super) fn large_transfer_is_bounded_per_poll<H: Harness>(harness: H) {
    let (mut world, link) = World::connected(harness);
    world.server().post_receives(1, &[HUGE_BYTES]);
    let data = pattern(1, HUGE_BYTES);
    let work = world.send_signalled(link, &[&data]);
    let polls = polls_until_completion(&mut world, SERVER, CLIENT);
    at_least_the_steps_of::<H>(polls, HUGE_BYTES);
    world.expect(SERVER, link, &data);
    assert_eq!(world.finished(CLIENT, work).0, Status::Success);
    world.finish();
}

/// So is what is read.
pub(in super::super) fn large_read_is_bounded_per_poll<H: Harness>(harness: H) {
    let (mut world, link) = World::connected(harness);
    let data = pattern(1, HUGE_BYTES);
    let window = world.expose(link, &data, READ);
    let work = world.read(link, &[HUGE_BYTES], window.remote());
    let polls = polls_until_completion(&mut world, CLIENT, SERVER);
    at_least_the_steps_of::<H>(polls, HUGE_BYTES);
    let (status, read) = world.finished(CLIENT, work);
    assert_eq!(status, Status::Success);
    assert!(read == data);
    world.finish();
}

/// Polls of `who` until it has a completion, with the other side polled in between.
fn polls_until_completion<H: Harness>(world: &mut World<H>, who: usize, other: usize) -> u64 {
    let mut polls = 0;
    let wait = Wait::begin("the end of the transfer");
    world.turn_of(other);
    while world.turn_of(who) == 0 {
        polls += 1;
        wait.look(|| format!("{polls} polls"));
        world.turn_of(other);
    }
    polls + 1
}

fn at_least_the_steps_of<H: Harness>(polls: u64, bytes: u32) {
    let step = H::extras()
        .copied_bytes_per_poll_max
        .expect("the case needs the bound");
    let least = u64::from(bytes).div_ceil(step);
    assert!(
        polls >= least,
        "{bytes} bytes took {polls} polls, at most {step} bytes each would take {least}"
    );
}

/// A core that announced its sleep is woken by what a peer sends; one that has work does not
/// sleep.
pub(in super::super) fn a_parked_core_is_woken<H: Harness>(harness: H) {
    let (mut world, link) = World::joined(harness);
    world.works(link);
    // The acknowledgement of what the server sent is work for it, and comes after the message.
    world.until("the end of all Sends", |world| {
        let is_done = |side: &Side<H>| side.missing() == [0; 3];
        world.sides.iter().all(is_done).then_some(())
    });
    world.idle();
    for seed in 0..3 {
        assert!(world.server().port.prepare_to_park(), "there is no work");
        assert_eq!(world.turn_of(SERVER), 0, "the poll after the announcement");
        assert!(
            !readable(&world.server().port, Duration::ZERO),
            "nobody has sent anything"
        );
        let data = pattern(seed, 100);
        world.send_copied(CLIENT, link, &data);
        world.turn_of(CLIENT);
        assert!(
            readable(&world.server().port, PATIENCE),
            "the event of a parked core is not set by a Send"
        );
        world.server().port.unpark();
        assert!(
            !readable(&world.server().port, Duration::ZERO),
            "the event is cleared"
        );
        world.expect(SERVER, link, &data);
        world.idle();
    }
    world.send_copied(CLIENT, link, &[1; 10]);
    world.turn_of(CLIENT);
    if world.server().port.prepare_to_park() {
        // A device may take its time with the message.
        let is_moved_by_device = H::extras().copied_bytes_per_poll_max.is_none();
        assert!(is_moved_by_device, "a message is waiting");
        assert!(readable(&world.server().port, PATIENCE), "it never comes");
        world.server().port.unpark();
    }
    world.expect(SERVER, link, &[1; 10]);
    world.finish();
}

/// Whether the port's event is set within `time`.
fn readable<P: Port>(port: &P, time: Duration) -> bool {
    let event = port.event();
    let mut polled = [PollFd::new(&event, PollFlags::IN)];
    let time = Timespec::try_from(time).expect("a short time");
    rustix::event::poll(&mut polled, Some(&time)).expect("poll of one descriptor") == 1
}
