//! Adopting, half-established connections, idle channels, parking, and wrong files.

use std::os::fd::AsRawFd;
use std::time::Duration;

use super::*;
use crate::interface::prelude::*;
use crate::interface::{PostError, SetupError};
use crate::shm::{ChannelFile, PortEvent};

#[test]
fn a_server_sends_only_after_the_client_confirmed() {
    let (mut a, mut b, joint) = unjoined();
    let (client, mut server) = joint.prepared_pair(&a.handle, &b.handle).unwrap();
    let memory = server.memory.take().unwrap();
    let local = server.local();
    b.id = b.port.adopt_queue_pair(server, b.queue).unwrap();
    assert_eq!(
        b.send(b"early", SendOptions::default()),
        Err(PostError::QueueFull)
    );
    a.id = a.port.adopt_queue_pair(client, a.queue).unwrap();
    a.send(b"hello", signalled(1)).unwrap();
    assert_eq!(told(b.settle()), []);
    b.port
        .handle_event(PortEvent::Established { local, memory });
    let received = What::Received(b"hello".to_vec(), None);
    assert_eq!(told(b.settle()), [(Status::Success, received)]);
    b.send(b"welcome", SendOptions::default()).unwrap();
    assert_eq!(a.settle().len(), 2);
}

#[test]
fn a_seed_of_another_channel_is_refused_and_leaves_nothing() {
    let (mut a, mut b, joint) = unjoined();
    let (first, _) = connect(&mut a, &mut b, &joint);
    let free = a.handle.numbers.len();
    let other = Joint::new(&a.port, &a.handle, &b.port, &b.handle).unwrap();
    let (mut seed, _) = joint.prepared_pair(&a.handle, &b.handle).unwrap();
    seed.memory = other.prepared_pair(&a.handle, &b.handle).unwrap().0.memory;
    let error = a.port.adopt_queue_pair(seed, a.queue).unwrap_err();
    assert!(matches!(error, SetupError::Peer { .. }), "{error}");
    assert_eq!(a.handle.numbers.len(), free, "the number is free again");
    a.id = first;
    a.send(b"still", SendOptions::default()).unwrap();
    assert_eq!(b.settle().len(), 1);
}

#[test]
fn a_channel_file_is_sealed() {
    assert!(ChannelFile::create(10_000).is_err());
    assert!(ChannelFile::create(4096).is_err());
    let (file, mapping) = ChannelFile::create(8192).unwrap();
    assert_eq!(mapping.bytes(), 4096 + 8192);
    assert!(rustix::fs::ftruncate(&file, 1).is_err());
    let again = std::fs::OpenOptions::new()
        .write(true)
        .open(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let written = again.and_then(|mut file| std::io::Write::write(&mut file, b"x"));
    assert!(written.is_err(), "no new way to write");
}

#[test]
fn a_channel_is_forgotten_when_nobody_wants_it() {
    let (mut a, mut b, joint) = unjoined();
    let (first, _) = connect(&mut a, &mut b, &joint);
    a.port.disconnect(first);
    a.settle();
    a.port.destroy_queue_pair(first);
    assert_eq!(a.port.free_channel(), 1, "a queue pair may come");
    let (second, _) = connect(&mut a, &mut b, &joint);
    drop(joint);
    a.port.disconnect(second);
    a.settle();
    a.port.destroy_queue_pair(second);
    assert_eq!(a.port.free_channel(), 0);
}

#[test]
fn a_channel_that_waited_in_vain_is_forgotten_when_the_next_queue_pair_is_adopted() {
    let (mut a, mut b, joint) = unjoined();
    let mut c = End::new(2, |_| {});
    let (first, _) = connect(&mut a, &mut b, &joint);
    let (prepared, _) = joint.prepared_pair(&a.handle, &b.handle).unwrap();
    drop(joint);
    a.port.disconnect(first);
    a.settle();
    a.port.destroy_queue_pair(first);
    assert_eq!(a.port.free_channel(), 1, "a queue pair may come");
    drop(prepared);
    let queues = (a.queue, c.queue);
    let other = Joint::new(&a.port, &a.handle, &c.port, &c.handle).unwrap();
    other
        .connect(&mut a.port, &a.handle, &mut c.port, &c.handle, queues)
        .unwrap();
    assert_eq!(a.port.free_channel(), 0, "nobody wanted it");
}

#[test]
fn a_queue_pair_that_is_not_adopted_gives_its_number_back_one_generation_on() {
    let (mut a, b, joint) = unjoined();
    let free = a.handle.numbers.len();
    for is_offered in [false, true] {
        let (prepared, _) = joint.prepared_pair(&a.handle, &b.handle).unwrap();
        let number = prepared.local();
        assert_eq!(a.handle.numbers.len(), free - 1);
        if is_offered {
            let nowhere = crate::interface::ReceiveQueueId(77);
            a.port.adopt_queue_pair(prepared, nowhere).unwrap_err();
        } else {
            drop(prepared);
        }
        assert_eq!(a.handle.numbers.len(), free);
        let numbers: Vec<_> = std::iter::from_fn(|| a.handle.numbers.pop()).collect();
        assert_eq!(numbers.last(), Some(&number.next_generation()));
        for number in numbers {
            a.handle.numbers.push(number).unwrap();
        }
    }
}

#[test]
fn more_channels_than_hot_ones_all_deliver() {
    let mut a = End::new(0, |config| config.hot_channels_max = 2);
    let mut others: Vec<_> = (1..=12)
        .map(|number| {
            let mut other = End::new(number, |_| {});
            let ids = joined(&mut a, &mut other);
            other.id = ids.1;
            (other, ids.0)
        })
        .collect();
    for round in 0..50_u8 {
        for (other, _) in &mut others {
            other.send(&[round], SendOptions::default()).unwrap();
        }
        let mut seen: Vec<_> = (0..20)
            .flat_map(|_| a.poll())
            .map(|event| event.id.index)
            .collect();
        seen.sort_unstable();
        let mut expected: Vec<_> = others.iter().map(|(_, id)| id.index).collect();
        expected.sort_unstable();
        assert_eq!(seen, expected);
        // And each answers.
        for (other, id) in &mut others {
            a.id = *id;
            a.send(&[round], SendOptions::default()).unwrap();
            assert_eq!(other.settle().len(), 1);
        }
    }
    assert!(a.counter("doorbells_in") >= 10 * 50);
}

#[test]
fn a_busy_channel_becomes_hot_when_others_sleep() {
    let mut a = End::new(0, |config| config.hot_channels_max = 1);
    let (mut b, mut c) = (End::new(1, |_| {}), End::new(2, |_| {}));
    for other in [&mut b, &mut c] {
        let ids = joined(&mut a, other);
        other.id = ids.1;
    }
    for _ in 0..5000 {
        a.poll();
    }
    for _ in 0..3 {
        c.send(b"x", SendOptions::default()).unwrap();
        assert_eq!((0..2).flat_map(|_| a.poll()).count(), 1);
    }
    assert_eq!((a.counter("promotions"), a.counter("demotions")), (1, 1));
    let rung = c.counter("doorbells_out");
    c.send(b"x", SendOptions::default()).unwrap();
    assert_eq!(c.counter("doorbells_out"), rung, "c is looked at without");
    assert_eq!(a.poll().len(), 1);
    b.send(b"y", SendOptions::default()).unwrap();
    assert_eq!(b.counter("doorbells_out"), 1);
    assert_eq!((0..2).flat_map(|_| a.poll()).count(), 1);
}

#[test]
fn a_missed_doorbell_is_found_by_the_sweep() {
    let mut a = End::new(0, |config| config.hot_channels_max = 1);
    let mut others: Vec<_> = (1..=3)
        .map(|number| {
            let mut other = End::new(number, |_| {});
            let ids = joined(&mut a, &mut other);
            other.id = ids.1;
            other
        })
        .collect();
    a.settle();
    for other in &mut others {
        // Posted, but the doorbell is never rung.
        let buffer = other.filled(b"quiet");
        let id = other.id;
        other
            .port
            .post_send_copied(id, &buffer, 5, SendOptions::default())
            .unwrap();
    }
    let polls = 16 * 4;
    assert_eq!((0..polls).flat_map(|_| a.poll()).count(), 3);
}

#[test]
fn limits_are_reported() {
    let limit = |change: &dyn Fn(&mut PortConfig)| {
        let options = ArenaOptions {
            bytes: 4096,
            huge_pages: HugePages::Never,
        };
        let mut config = PortConfig::new(0, Arena::shared(&options).unwrap(), Clock::new());
        change(&mut config);
        matches!(Port::new(config), Err(SetupError::Limit { .. }))
    };
    assert!(limit(&|config| config.channel_ring_bytes = 10_000));
    assert!(limit(&|config| config.work_requests_max = 1 << 31));
    assert!(limit(&|config| config.channel_ring_bytes = 4096));
    assert!(limit(&|config| config.queue_pairs_max = 65_537));
    assert!(limit(&|config| config.windows_max = 65_537));
    assert!(limit(&|config| config.inline_bytes_max = 32_768));
    assert!(limit(&|config| config.delay = Duration::from_millis(10_001)));
    assert!(!limit(&|config| config.delay = Duration::from_secs(10)));
    let mut end = End::new(0, |_| {});
    let one = end.large.take();
    let full = end.port.create_receive(end.queue, &mut one.into_iter());
    assert!(matches!(full, Err(SetupError::Limit { .. })));
    let none = ReceiveQueueAttributes {
        depth: 0,
        segments_max: 1,
    };
    assert!(end.port.create_receive_queue(none).is_err());
}

#[test]
fn a_port_that_guarantees_no_work_to_a_queue_pair_is_refused() {
    let made = |works, queue_pairs| {
        let options = ArenaOptions {
            bytes: 4096,
            huge_pages: HugePages::Never,
        };
        let config = PortConfig {
            work_requests_max: works,
            queue_pairs_max: queue_pairs,
            ..PortConfig::new(0, Arena::shared(&options).unwrap(), Clock::new())
        };
        Port::new(config)
    };
    assert!(made(2, 1).is_ok());
    assert!(made(128, 64).is_ok());
    for (works, queue_pairs) in [(127, 64), (1, 1), (1024, 1024)] {
        let told = made(works, queue_pairs).unwrap_err().to_string();
        let sum = format!(
            "{queue_pairs} queue pairs = {} needed, and there are {works} work requests of the port; raise work_requests_max",
            2 * queue_pairs
        );
        assert!(told.contains(&sum), "{told}");
    }
}
