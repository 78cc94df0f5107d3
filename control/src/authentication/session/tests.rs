//! Sessions against each other, with a mechanism that proves nothing: what passes, what is refused, and when.

use super::*;
use crate::authentication::HostAuthentication;
use rpcrdma_protocol::v2::{Property, write_property_set};
use std::sync::Arc;

/// Says "1", "2", "3", "4" in turn, and takes nothing else.
#[derive(Debug)]
struct Counting;

#[derive(Debug)]
struct Count(u8);

impl HostAuthentication for Counting {
    fn initiate(&self) -> Result<(Box<dyn Exchange>, Vec<u8>), AuthenticationFailure> {
        Ok((Box::new(Count(b'2')), vec![b'1']))
    }

    fn respond(&self) -> Result<Box<dyn Exchange>, AuthenticationFailure> {
        Ok(Box::new(Count(b'1')))
    }
}

impl Exchange for Count {
    fn step(
        &mut self,
        message: &[u8],
        properties: &BoundProperties,
    ) -> Result<Step, AuthenticationFailure> {
        assert_eq!(
            properties.initiator,
            octets(Some(&client_properties()), None)
        );
        assert_eq!(
            properties.responder,
            octets(Some(&server_properties()), None)
        );
        if message != [self.0] {
            return Err(AuthenticationFailure::WrongProof);
        }
        let answer = vec![self.0 + 1];
        let peer = HostIdentity::new("peer").expect("a name");
        self.0 += 2;
        Ok(match message {
            b"3" => Step::Done {
                answer: Some(answer),
                peer,
            },
            b"4" => Step::Done { answer: None, peer },
            _ => Step::Continue(answer),
        })
    }
}

/// Begins with a message of this length, and answers with one.
#[derive(Debug)]
struct Lengthy(usize);

impl HostAuthentication for Lengthy {
    fn initiate(&self) -> Result<(Box<dyn Exchange>, Vec<u8>), AuthenticationFailure> {
        Ok((self.respond()?, vec![7; self.0]))
    }

    fn respond(&self) -> Result<Box<dyn Exchange>, AuthenticationFailure> {
        Ok(Box::new(Self(self.0)))
    }
}

impl Exchange for Lengthy {
    fn step(&mut self, _: &[u8], _: &BoundProperties) -> Result<Step, AuthenticationFailure> {
        Ok(Step::Continue(vec![7; self.0]))
    }
}

fn client_properties() -> Properties {
    Properties::default()
}

fn server_properties() -> Properties {
    Properties {
        send_bytes_max: 8192,
        ..Properties::default()
    }
}

fn required() -> Authentication {
    Authentication::Required(Arc::new(Counting))
}

fn optional() -> Authentication {
    Authentication::Optional(Arc::new(Counting))
}

fn server(policy: Authentication) -> Session {
    Session::server(policy, Duration::from_secs(5))
}

/// A property set: these properties, and a message of host authentication.
fn octets(properties: Option<&Properties>, message: Option<&[u8]>) -> Vec<u8> {
    let mut all = Vec::new();
    if let Some(properties) = properties {
        all.extend_from_slice(&properties.to_properties());
    }
    all.extend(message.map(|message| Property::HostAuthentication(Some(message))));
    encoded(|writer| write_property_set(writer, &all)).expect("it fits")
}

fn handle(session: &mut Session, set: &[u8], now: Instant) -> Verdict {
    let own = match session.role {
        Role::Client => client_properties(),
        Role::Server => server_properties(),
    };
    let set = PropertySet::decode(set).expect("a good set");
    let own = Announced {
        properties: &own,
        application: &ApplicationProperties::NONE,
    };
    session.handle(&set, own, now)
}

/// The set that an end sends with this verdict, if it sends any.
fn sent(role: Role, verdict: &Verdict) -> Option<Vec<u8>> {
    let own = match role {
        Role::Client => client_properties(),
        Role::Server => server_properties(),
    };
    let message = match verdict {
        Verdict::Accept(_) => return (role == Role::Server).then(|| octets(Some(&own), None)),
        Verdict::Authenticate { send, .. } => send.as_ref()?,
        Verdict::Refuse { send, .. } => send,
        _ => return None,
    };
    Some(octets(
        message.with_properties.then_some(&own),
        Some(&message.bytes),
    ))
}

/// What came of an end: ready with or without an identity, or not.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Ready { authenticated: bool },
    Failed(AuthenticationFailure),
    Waiting,
}

fn end(verdict: Option<&Verdict>) -> End {
    match verdict {
        Some(Verdict::Accept(_)) => End::Ready {
            authenticated: false,
        },
        Some(Verdict::Authenticate {
            identity: Some(_), ..
        }) => End::Ready {
            authenticated: true,
        },
        Some(Verdict::Refuse { failure, .. } | Verdict::Close(failure)) => End::Failed(*failure),
        _ => End::Waiting,
    }
}

/// Runs an exchange to its end: what came of the client, and of the server.
fn run(client_policy: Authentication, server_policy: Authentication) -> [End; 2] {
    // TIME: a beginning, to which the test itself adds what passes.
    let now = Instant::now();
    let mut client = Session::client(client_policy);
    let mut server = server(server_policy);
    assert_eq!(server.begin(now), Ok(None), "a client speaks first");
    let hello = client.begin(now).expect("the mechanism works");
    assert!(hello.as_ref().is_none_or(|hello| hello.with_properties));
    let message = hello.as_ref().map(|hello| &hello.bytes[..]);
    let mut set = octets(Some(&client_properties()), message);
    let mut verdicts = [None, None];
    for turn in 0.. {
        let (index, session, role) = if turn % 2 == 0 {
            (1, &mut server, Role::Server)
        } else {
            (0, &mut client, Role::Client)
        };
        let verdict = handle(session, &set, now);
        let next = sent(role, &verdict);
        verdicts[index] = Some(verdict);
        match next {
            Some(next) => set = next,
            None => break,
        }
    }
    verdicts.each_ref().map(|verdict| end(verdict.as_ref()))
}

#[test]
fn policies_meet_each_other() {
    use AuthenticationFailure as Failure;
    let authenticated = || {
        [
            End::Ready {
                authenticated: true,
            },
            End::Ready {
                authenticated: true,
            },
        ]
    };
    let plain = || {
        [
            End::Ready {
                authenticated: false,
            },
            End::Ready {
                authenticated: false,
            },
        ]
    };
    let none = || Authentication::None;
    #[rustfmt::skip]
    let cases = [
        (none(), none(), plain()),
        (none(), Authentication::Fabric, plain()),
        (Authentication::Fabric, none(), plain()),
        (none(), optional(), plain()),
        (optional(), none(), plain()),
        (optional(), optional(), authenticated()),
        (optional(), required(), authenticated()),
        (required(), optional(), authenticated()),
        (required(), required(), authenticated()),
        (none(), required(), [End::Failed(Failure::RequiredByPeer), End::Failed(Failure::NotOffered)]),
        (required(), none(), [End::Failed(Failure::NotOffered), End::Ready { authenticated: false }]),
    ];
    for (client, server, expected) in cases {
        let what = format!("{client:?} to {server:?}");
        assert_eq!(run(client, server), expected, "{what}");
    }
}

#[test]
fn only_what_requires_a_proof_is_guarded() {
    for (policy, guarded) in [
        (Authentication::Fabric, false),
        (Authentication::None, false),
        (optional(), false),
        (required(), true),
    ] {
        assert_eq!(server(policy.clone()).is_guarded(), guarded);
        assert_eq!(Session::client(policy).is_guarded(), guarded);
    }
}

#[test]
fn a_wrong_message_is_refused_under_every_policy() {
    // TIME: a beginning, to which the test itself adds what passes.
    let now = Instant::now();
    for policy in [optional(), required()] {
        let mut server = server(policy);
        let first = octets(Some(&client_properties()), Some(b"x"));
        let verdict = handle(&mut server, &first, now);
        let Verdict::Refuse { send, failure } = verdict else {
            panic!("{verdict:?}");
        };
        assert_eq!(failure, AuthenticationFailure::WrongProof);
        assert!(send.bytes.is_empty() && send.with_properties);
        let again = octets(None, Some(b"1"));
        assert_eq!(handle(&mut server, &again, now), Verdict::Ignore);
        assert_eq!(server.identity(), None);
    }
}

#[test]
fn a_client_that_is_refused_in_the_middle_learns_it() {
    // TIME: a beginning, to which the test itself adds what passes.
    let now = Instant::now();
    let mut client = Session::client(required());
    client.begin(now).expect("the mechanism works");
    let challenge = octets(Some(&server_properties()), Some(b"2"));
    assert_eq!(
        end(Some(&handle(&mut client, &challenge, now))),
        End::Waiting
    );
    let refused = handle(&mut client, &octets(None, Some(b"")), now);
    assert_eq!(
        refused,
        Verdict::Close(AuthenticationFailure::RefusedByPeer)
    );
}

#[test]
fn host_authentication_alone_may_come_again_and_only_during_the_exchange() {
    // TIME: a beginning, to which the test itself adds what passes.
    let now = Instant::now();
    let first = octets(Some(&client_properties()), Some(b"1"));
    let properties = octets(Some(&client_properties()), None);
    let both = octets(Some(&client_properties()), Some(b"3"));
    for again in [&first, &properties, &both, &octets(None, None)] {
        let mut server = server(required());
        assert_eq!(end(Some(&handle(&mut server, &first, now))), End::Waiting);
        let refused = end(Some(&handle(&mut server, again, now)));
        assert_eq!(
            refused,
            End::Failed(AuthenticationFailure::PropertiesChanged)
        );
    }
    for again in [&properties, &octets(None, Some(b"3"))] {
        let mut server = server(required());
        handle(&mut server, &first, now);
        let ready = handle(&mut server, &octets(None, Some(b"3")), now);
        assert_eq!(
            end(Some(&ready)),
            End::Ready {
                authenticated: true
            }
        );
        assert_eq!(server.identity().map(HostIdentity::as_str), Some("peer"));
        let refused = handle(&mut server, again, now);
        assert_eq!(
            refused,
            Verdict::Close(AuthenticationFailure::PropertiesChanged)
        );
    }
}

#[test]
fn properties_stand_for_the_life_of_the_connection() {
    // TIME: a beginning, to which the test itself adds what passes.
    let now = Instant::now();
    let peer = Properties {
        segment_bytes_max: 65_536,
        ..Properties::default()
    };
    let same = octets(Some(&peer), None);
    let smaller = Properties {
        segment_bytes_max: 1,
        ..peer
    };
    let smaller = octets(Some(&smaller), None);
    let client = Session::client(Authentication::None);
    for mut session in [client, server(Authentication::None)] {
        // What a set does not name stays.
        for again in [&same, &same, &octets(None, None), &octets(None, Some(b"1"))] {
            let accepted = handle(&mut session, again, now);
            assert_eq!(accepted, Verdict::Accept(peer));
        }
        let refused = handle(&mut session, &smaller, now);
        assert_eq!(refused, Verdict::PropertiesChanged);
        let ignored = handle(&mut session, &same, now);
        assert_eq!(ignored, Verdict::Ignore, "it is to be closed");
    }
}

#[test]
fn properties_that_cannot_be_used_are_refused_whoever_sends_them() {
    let small = Properties {
        receive_buffer_bytes: 512,
        ..client_properties()
    };
    let mut server = server(required());
    let verdict = handle(
        &mut server,
        &octets(Some(&small), Some(b"1")),
        // TIME: a beginning, to which the test itself adds what passes.
        Instant::now(),
    );
    assert_eq!(verdict, Verdict::ReceiveBufferTooSmall(512));
}

#[test]
fn a_peer_has_its_time_and_one_that_was_refused_a_little_more() {
    let begin = Instant::now();
    let mut silent = server(required());
    silent.begin(begin).expect("a server says nothing");
    assert_eq!(silent.deadline(), Some(begin + Duration::from_secs(5)));
    assert_eq!(silent.expire(), AuthenticationFailure::TimedOut);
    assert_eq!(silent.deadline(), None, "it expires once");

    let later = begin + Duration::from_secs(1);
    let first = octets(Some(&client_properties()), Some(b"1"));
    let mut may = server(optional());
    may.begin(begin).expect("a server says nothing");
    assert_eq!(may.deadline(), None, "it may leave it");
    handle(&mut may, &first, later);
    assert_eq!(
        may.deadline(),
        Some(later + Duration::from_secs(5)),
        "and has begun"
    );
    handle(&mut may, &octets(None, Some(b"3")), later);
    assert_eq!(may.deadline(), None, "and is done");

    let mut slow = server(required());
    slow.begin(begin).expect("a server says nothing");
    handle(&mut slow, &first, later);
    let due = Some(begin + Duration::from_secs(5));
    assert_eq!(slow.deadline(), due, "messages do not prolong it");
    handle(&mut slow, &octets(None, Some(b"x")), later);
    assert_eq!(slow.deadline(), Some(later + REFUSAL_GRACE));
    assert_eq!(slow.expire(), AuthenticationFailure::WrongProof);
}

#[test]
fn messages_of_a_mechanism_have_1_to_512_octets() {
    // TIME: a beginning, to which the test itself adds what passes.
    let now = Instant::now();
    for (length, fits) in [(0, false), (1, true), (512, true), (513, false)] {
        let mechanism = Arc::new(Lengthy(length));
        let mut client = Session::client(Authentication::Required(mechanism.clone()));
        assert_eq!(client.begin(now).is_ok(), fits, "{length}");
        let mut server = server(Authentication::Required(mechanism));
        let answer = handle(
            &mut server,
            &octets(Some(&client_properties()), Some(b"1")),
            now,
        );
        let expected = if fits {
            End::Waiting
        } else {
            End::Failed(AuthenticationFailure::Local)
        };
        assert_eq!(end(Some(&answer)), expected, "{length}");
    }
    for (length, expected) in [
        (512, End::Waiting),
        (513, End::Failed(AuthenticationFailure::Malformed)),
    ] {
        let mut server = server(Authentication::Required(Arc::new(Lengthy(1))));
        let first = octets(Some(&client_properties()), Some(&vec![7; length]));
        let verdict = handle(&mut server, &first, now);
        assert_eq!(end(Some(&verdict)), expected, "{length}");
    }
}
