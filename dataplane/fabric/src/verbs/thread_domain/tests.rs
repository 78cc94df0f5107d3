use super::*;
use crate::interface::{PortSetup, ReceiveQueueAttributes, ReceiveQueueId};
use crate::verbs::fake::{Card, Fake, ThreadDomains};
use crate::verbs::{Port, PortHandle, PreparedQueuePair, QueuePair, WithoutWindows};

/// A device that is open, so that what follows is of its ports.
fn device(thread_domains: ThreadDomains) -> (Fake, Arc<Context>) {
    let fake = Fake::install(Card {
        thread_domains,
        ..Card::HONEST
    });
    let context = Context::open(Some(fake.name())).expect("the fake device");
    fake.take_calls();
    (fake, context)
}

fn receive_queue(port: &mut Port) -> ReceiveQueueId {
    let attributes = ReceiveQueueAttributes {
        depth: 4,
        segments_max: 1,
    };
    port.create_receive_queue(attributes)
        .expect("a receive queue")
}

fn queue_pair(handle: &PortHandle) -> QueuePair {
    QueuePair::create(handle).expect("a queue pair")
}

fn adopt(port: &mut Port, queue_pair: QueuePair, queue: ReceiveQueueId) {
    let prepared = PreparedQueuePair {
        queue_pair,
        initiator_depth: 0,
        established: true,
    };
    port.adopt_queue_pair(prepared, queue).expect("adopted");
}

fn count(calls: &[String], call: &str) -> usize {
    calls.iter().filter(|it| *it == call).count()
}

/// The places of these calls, each of which was made once.
fn places<const N: usize>(calls: &[String], of: [&str; N]) -> [usize; N] {
    of.map(|call| {
        assert_eq!(count(calls, call), 1, "{call} of {calls:?}");
        calls
            .iter()
            .position(|it| it == call)
            .expect("counted above")
    })
}

#[test]
fn queue_pairs_alone_are_in_the_thread_domain() {
    let (fake, _context) = device(ThreadDomains::Work);
    let (mut port, handle) = fake.port(|config| config.thread_domain = true);
    assert_eq!(port.attributes().thread_domain_refused, None);
    let queue = receive_queue(&mut port);
    let other = queue_pair(&handle);
    adopt(&mut port, queue_pair(&handle), queue);
    let calls = fake.take_calls();
    places(
        &calls,
        ["thread domain", "parent domain", "protection domain"],
    );
    // One of them to try how many bytes are inline.
    assert_eq!(count(&calls, "queue pair in parent domain"), 3, "{calls:?}");
    for object in ["region", "window", "shared receive queue"] {
        let within = |kind: &str| count(&calls, &format!("{object} in {kind} domain"));
        assert!(within("protection") > 0, "{object}: {calls:?}");
        assert_eq!(within("parent"), 0, "{object}: {calls:?}");
    }
    assert_eq!(count(&calls, "queue pair in protection domain"), 0);
    drop((other, port));
}

#[test]
fn no_thread_domain_is_made_unless_one_is_configured() {
    let (fake, _context) = device(ThreadDomains::Work);
    let (mut port, handle) = fake.port(|_| {});
    assert_eq!(port.attributes().thread_domain_refused, None);
    receive_queue(&mut port);
    drop(queue_pair(&handle));
    let calls = fake.take_calls();
    assert_eq!(count(&calls, "thread domain"), 0, "{calls:?}");
    assert_eq!(count(&calls, "parent domain"), 0, "{calls:?}");
    assert_eq!(count(&calls, "queue pair in protection domain"), 2);
}

#[test]
fn port_without_a_thread_domain_works_and_has_the_reason() {
    let unsupported = std::io::Error::from_raw_os_error(libc::EOPNOTSUPP).to_string();
    let invalid = std::io::Error::from_raw_os_error(libc::EINVAL).to_string();
    let (thread, parent) = ("refused a thread domain", "refused a parent domain");
    for (thread_domains, what, reason, made) in [
        (ThreadDomains::OldContext, thread, &unsupported, 0),
        (ThreadDomains::ShortContext, thread, &unsupported, 0),
        (ThreadDomains::NoOperations, thread, &unsupported, 0),
        (ThreadDomains::Refused, thread, &unsupported, 0),
        (ThreadDomains::WithoutParents, parent, &unsupported, 1),
        (
            ThreadDomains::WithoutQueuePairs,
            "refused a queue pair",
            &invalid,
            1,
        ),
    ] {
        let (fake, _context) = device(thread_domains);
        let (mut port, handle) = fake.port(|config| config.thread_domain = true);
        let refused = port.attributes().thread_domain_refused.clone();
        let refused = refused.expect("a reason");
        assert!(refused.contains(what), "{thread_domains:?}: {refused}");
        assert!(refused.contains(reason), "{thread_domains:?}: {refused}");
        let queue = receive_queue(&mut port);
        adopt(&mut port, queue_pair(&handle), queue);
        let calls = fake.take_calls();
        assert_eq!(count(&calls, "queue pair in protection domain"), 2);
        assert_eq!(count(&calls, "queue pair in parent domain"), 0);
        assert_eq!(count(&calls, "thread domain"), made, "{thread_domains:?}");
        // What was made in vain is given back.
        assert_eq!(count(&calls, "end of thread domain"), made, "{calls:?}");
    }
}

/// The manager may hold a queue pair longer than the core has its port.
#[test]
fn domains_end_after_the_last_queue_pair_in_them() {
    for queue_pair_is_last in [false, true] {
        let (fake, context) = device(ThreadDomains::Work);
        let (mut port, handle) = fake.port(|config| config.thread_domain = true);
        receive_queue(&mut port);
        let last = queue_pair(&handle);
        fake.take_calls();
        drop(context);
        if queue_pair_is_last {
            drop((port, handle));
            drop(last);
        } else {
            drop((last, handle));
            drop(port);
        }
        let calls = fake.take_calls();
        let ends = [
            "end of queue pair",
            "end of parent domain",
            "end of thread domain",
            "end of protection domain",
        ];
        let found = places(&calls, ends);
        assert!(found.is_sorted(), "{calls:?}");
        assert!(!calls.iter().any(|it| it.ends_with("in use")), "{calls:?}");
    }
}

/// Where memory is registered for calls and each queue pair has its own receive queue.
#[test]
fn queue_pairs_with_their_own_protection_domains_share_the_thread_domain() {
    let (fake, _context) = device(ThreadDomains::Work);
    let (port, handle) = fake.port(|config| {
        config.thread_domain = true;
        config.own_receive_queues = true;
        config.without_windows = WithoutWindows::RegisterAnyway;
    });
    fake.take_calls();
    let pairs = [queue_pair(&handle), queue_pair(&handle)];
    let calls = fake.take_calls();
    assert_eq!(count(&calls, "thread domain"), 0, "{calls:?}");
    assert_eq!(count(&calls, "protection domain"), 2, "{calls:?}");
    assert_eq!(count(&calls, "parent domain"), 2, "{calls:?}");
    assert_eq!(count(&calls, "queue pair in parent domain"), 2, "{calls:?}");
    assert_eq!(count(&calls, "region in parent domain"), 0, "{calls:?}");
    drop((pairs, port, handle));
    let calls = fake.take_calls();
    assert_eq!(count(&calls, "end of parent domain"), 3, "{calls:?}");
    places(&calls, ["end of thread domain"]);
    assert!(!calls.iter().any(|it| it.ends_with("in use")), "{calls:?}");
}

/// A connection is made, which is slower, where the other choice is none.
#[test]
fn queue_pair_that_is_refused_a_parent_domain_keeps_the_locks() {
    let (fake, _context) = device(ThreadDomains::OneParent);
    let (mut port, handle) = fake.port(|config| {
        config.thread_domain = true;
        config.own_receive_queues = true;
        config.without_windows = WithoutWindows::RegisterAnyway;
    });
    assert_eq!(port.attributes().thread_domain_refused, None);
    let queue = receive_queue(&mut port);
    fake.take_calls();
    adopt(&mut port, queue_pair(&handle), queue);
    let calls = fake.take_calls();
    let made_in = ["protection domain", "queue pair in protection domain"];
    places(&calls, made_in);
    assert_eq!(count(&calls, "parent domain"), 0, "{calls:?}");
    drop((port, handle));
    let calls = fake.take_calls();
    assert_eq!(count(&calls, "end of protection domain"), 2, "{calls:?}");
    places(&calls, ["end of parent domain", "end of thread domain"]);
    assert!(!calls.iter().any(|it| it.ends_with("in use")), "{calls:?}");
}

#[test]
fn context_says_why_the_device_has_no_thread_domains() {
    for (thread_domains, words) in [
        (ThreadDomains::Work, None),
        (ThreadDomains::Refused, Some("refused a thread domain: ")),
        (
            ThreadDomains::WithoutParents,
            Some("refused a parent domain: "),
        ),
    ] {
        let (fake, context) = device(thread_domains);
        let refused = context.thread_domains_refused();
        assert_eq!(refused.is_some(), words.is_some(), "{refused:?}");
        let has_words = refused.unwrap_or_default().contains(words.unwrap_or(""));
        assert!(has_words, "{thread_domains:?}");
        let calls = fake.take_calls();
        for domain in ["thread domain", "parent domain", "protection domain"] {
            let ends = count(&calls, &format!("end of {domain}"));
            assert_eq!(ends, count(&calls, domain), "{calls:?}");
        }
    }
}
