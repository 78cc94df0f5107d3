//! `nfs41-recall` as a process, and a server that answers it: as it should, and otherwise. The Linux server is tried in
//! the lab (tests/lab/scenarios/one-nfs41-callbacks.sh).
#![forbid(unsafe_code)]

use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use rpcrdma_control::{ListenOptions, Node, NodeConfig, ShmProvider};
use rpcrdma_engine::{
    Activity, Application, Call, CallError, CallTag, ConnectionKey, Context, Outcome, Reply,
    ReplyWriter, Request,
};
use rpcrdma_fabric::clock::Ticks;
use rpcrdma_fabric::interface::Port;
use rpcrdma_protocol::v2::ReverseRequestSupport;
use rpcrdma_tuning::{Idle, Profile};

/// What the server does otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// CREATE_SESSION refuses the back channel.
    NoBackChannel,
    /// OPEN gives no delegation.
    NoDelegation,
    /// Nothing is recalled, and writers get in.
    NoRecall,
    /// The delegation of somebody else is recalled.
    ForeignRecall,
}

/// CB_COMPOUND of the callback program (RFC 8881 section 19).
const CB_COMPOUND: Call = Call {
    program: 0x4000_0000,
    version: 1,
    procedure: 1,
};

/// The holder's session: its client is number 1. State identifiers have their number last.
const SESSION: [u32; 4] = [1, 0, 0, 0];

/// Answers as many operations of RFC 8881 as `nfs41-recall` makes, by their places in its calls.
struct Server {
    fault: Fault,
    clients: u32,
    /// Who has the delegation.
    holder: Option<ConnectionKey>,
    recall: Recall,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recall {
    Needless,
    Wanted,
    Made,
}

impl Server {
    /// The results of a COMPOUND, as words.
    fn results(&mut self, connection: ConnectionKey, args: &[u32]) -> Vec<u32> {
        let session = &args[4..8.min(args.len())];
        // No tag, minor version 1, and so many operations, of which the first is:
        let answer = match (args[3], args.get(12), args.get(13), args.get(15)) {
            (42, ..) => {
                self.clients += 1;
                vec![42, 0, 0, self.clients, 1, 0, 0, 0, 0, 0, 0, 0]
            }
            (43, ..) => {
                let flags = if self.fault == Fault::NoBackChannel {
                    0
                } else {
                    args[7]
                };
                // The back channel is asked for by the first client alone.
                assert_eq!(args[7], if args[5] == 1 { 2 } else { 0 });
                vec![43, 0, args[5], 0, 0, 0, 1, flags]
            }
            (53, Some(58), ..) => vec![58, 0],
            (53, Some(24), Some(18), Some(access)) => self.open(connection, *access),
            // PUTFH of one word, and CLOSE or DELEGRETURN.
            (53, Some(22), Some(4), Some(operation)) => {
                if *operation == 8 {
                    assert_eq!(args[16..20], [1, 0, 0, 7], "the delegation");
                    self.holder = None;
                }
                vec![22, 0, *operation, 0]
            }
            (operation @ (44 | 57), ..) => vec![operation, 0],
            other => panic!("{other:?} in {args:?}"),
        };
        let sequenced = [&[53, 0][..], session, &[0; 5]].concat();
        let before = if args[3] == 53 { &sequenced[..] } else { &[] };
        [&[0, 0, 9], before, &answer].concat()
    }

    /// PUTROOTFH, OPEN, GETFH.
    fn open(&mut self, connection: ConnectionKey, access: u32) -> Vec<u32> {
        let is_read = access & 3 == 1;
        if !is_read && self.holder.is_some() && self.fault != Fault::NoRecall {
            if self.recall == Recall::Needless {
                self.recall = Recall::Wanted;
            }
            return vec![24, 0, 18, 10_008];
        }
        let is_given = is_read && self.fault != Fault::NoDelegation;
        self.holder = self.holder.or(is_given.then_some(connection));
        let delegation: &[u32] = match is_given {
            true => &[1, 1, 0, 0, 7, 0, 0, 0, 0, 0],
            false => &[0],
        };
        let opened = [24, 0, 18, 0, 1, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0];
        [&opened, delegation, &[10, 0, 4, 0x4649_4c45]].concat()
    }
}

fn octets(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

impl Application for Server {
    fn call(&mut self, request: &Request<'_>, reply: &mut ReplyWriter<'_>) -> Outcome {
        assert_eq!((request.program, request.version), (100_003, 4));
        assert_eq!(request.credential.flavor, 1, "AUTH_SYS");
        let words = request.args.chunks_exact(4);
        let words = words.map(|it| u32::from_be_bytes(it.try_into().expect("four octets")));
        let results = self.results(request.connection, &words.collect::<Vec<_>>());
        let written = reply.write(&octets(&results));
        written.map_or(Outcome::SystemError, |()| Outcome::Success)
    }

    fn poll<P: Port>(&mut self, core: &mut Context<'_, P>, _now: Ticks) -> Activity {
        let (Recall::Wanted, Some(holder)) = (self.recall, self.holder) else {
            return Activity::Idle;
        };
        let state = if self.fault == Fault::ForeignRecall {
            8
        } else {
            7
        };
        let sequence = [&[0, 1, 0, 2, 11][..], &SESSION, &[1, 0, 0, 0, 0]].concat();
        let recall = [&sequence[..], &[4, 1, 0, 0, state, 0, 4, 0x4649_4c45]].concat();
        if core.call(holder, CB_COMPOUND, &octets(&recall), 0).is_ok() {
            self.recall = Recall::Made;
        }
        Activity::Busy
    }

    fn completed(
        &mut self,
        _tag: CallTag,
        _connection: ConnectionKey,
        result: Result<Reply<'_>, CallError>,
        _now: Ticks,
    ) {
        // Both operations were done: CB_SEQUENCE with its results, and CB_RECALL.
        let expected = [&[0, 0, 2, 11, 0][..], &SESSION, &[1, 0, 0, 0, 4, 0]].concat();
        assert_eq!(result.expect("a reply").results, octets(&expected));
    }
}

/// The program, against a server with this fault, in this version.
fn recalled(fault: Fault, protocol: &str) -> Output {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let profile = Profile {
        connections_max: 4,
        idle: Idle::Park,
        // Nobody is lost by silence.
        keep_alive_silent_ticks_max: 255,
        ..Profile::default()
    };
    let config = NodeConfig::from_profile(&profile, vec![None])
        .with_reverse_calls(ReverseRequestSupport::Inline);
    let node = Node::start(ShmProvider::from_profile(&profile), &config, |_| Server {
        fault,
        clients: 0,
        holder: None,
        recall: Recall::Needless,
    })
    .expect("a small node fits on any machine");
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let address = format!("shm:nfs41-recall-{}-{number}", std::process::id());
    let listening = node.listen(&address, ListenOptions::default());
    listening.expect("the name is free");
    // TIME: without a delegation the program tries until the time is over, however short it is. Otherwise it is so long that
    // no machine meets it.
    let timeout = if fault == Fault::NoDelegation {
        "2"
    } else {
        "600"
    };
    Command::new(env!("CARGO_BIN_EXE_nfs41-recall"))
        .args(["--connect", &address, "--file", "/file"])
        .args(["--protocol", protocol, "--timeout-s", timeout])
        .output()
        .expect("the program starts")
}

#[test]
fn a_delegation_is_recalled_and_returned_in_either_version() {
    for protocol in ["1", "2"] {
        let output = recalled(Fault::None, protocol);
        assert!(output.status.success(), "{output:?}");
        let said = String::from_utf8_lossy(&output.stdout);
        let steps = [
            &format!("connected: RPC-over-RDMA version {protocol}"),
            "holder: a session, whose back channel is this connection",
            "holder: open for reading, with a read delegation",
            "writer: OPEN is put off",
            "holder: CB_RECALL came in the reverse direction",
            "holder: DELEGRETURN is done",
            "writer: open for writing",
            "reverse_calls=1",
            "done",
        ];
        let mut rest = &said[..];
        for step in steps {
            let found = rest.find(step).unwrap_or_else(|| panic!("{step}: {said}"));
            rest = &rest[found + step.len()..];
        }
    }
}

#[test]
fn a_server_that_does_otherwise_is_an_error() {
    for (fault, words) in [
        (Fault::NoBackChannel, "makes no calls by this connection"),
        (Fault::NoDelegation, "gives no read delegation, for 2 s"),
        (Fault::NoRecall, "recalled nothing before"),
        (Fault::ForeignRecall, "a delegation that it did not give"),
    ] {
        let output = recalled(fault, "1");
        assert_eq!(output.status.code(), Some(1), "{fault:?}: {output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(words), "{fault:?}: {said}");
    }
}
