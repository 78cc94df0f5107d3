//! Hostile peers, by the million: messages of every type, changed field by field and at random, given to connections
//! in every state, and what comes of each compared with an oracle that knows the rules and none of the code.
//!
//! A case is one message with which something is wrong: a field, its length, its place among other messages, or the
//! state in which it comes. What a connection takes is then walked as an engine would walk it: chunk lists, items,
//! the message put together, the plans that follow. `cargo run --release --bin hostile -- --help` runs it.

mod build;
mod compare;
mod mutate;
pub mod oracle;
mod walk;

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use rpcrdma_protocol::v2::connection::{Config, Connection, Event, Phase, Role};
use rpcrdma_protocol::v2::rtr::{BufferSegment, ReceiveBufferStructure, RtrSupport, SegmentGroup};
use rpcrdma_protocol::v2::{Properties, decode_with_rtr};
use rpcrdma_testkit::Random;

use build::{Builder, CREDITS_MAX};
use mutate::{Marked, VALUES, disturb, noise, set_word};
use oracle::{Closed, Discarded, Model, Settings, Verdict, wire};
use walk::Walk;

/// Every way in which a message is refused or dropped, and every fault of what it asks for.
pub const REASONS: [&str; 62] = [
    "error VERS",
    "error BAD_XDR",
    "error INVAL_HTYPE",
    "error INVAL_FLAG",
    "error WRITE_CHUNKS",
    "error SEGMENTS",
    "error SYSTEM",
    "report BADHMT",
    "report BADCONT",
    "report BADSEQ",
    "report BADXID",
    "report BADOFF",
    "report BADTBSN",
    "report BADPL",
    "discarded: short",
    "discarded: part is missing",
    "discarded: rest of what was given up",
    "discarded: reply contradicts its header",
    "discarded: reply is too long",
    "discarded: unexpected error",
    "discarded: connection is over",
    "closed: no credit",
    "closed: too many credits",
    "closed: other version",
    "closed: BAD_XDR in a reply",
    "closed: INVAL_FLAG in a reply",
    "closed: INVAL_HTYPE in a reply",
    "closed: WRITE_CHUNKS in a reply",
    "closed: SEGMENTS in a reply",
    "closed: bad error",
    "header BelowLeastSize",
    "header Truncated",
    "header InvalidBoolean",
    "header TrailingBytes",
    "header UnsupportedVersion",
    "header UnknownHeaderType",
    "header ReservedFlags",
    "header TooManyWriteChunks",
    "header TooManySegments",
    "header TooManyItems",
    "header TooManySegmentNumbers",
    "header InvalidPlacementType",
    "header NoTransmission",
    "header InvalidReportedError",
    "header InvalidMessageType",
    "TooManyReadChunks",
    "PositionZeroRefused",
    "TooManyWriteChunks",
    "TooManySegments",
    "SegmentTooLong",
    "CallTooLong",
    "SegmentWraps",
    "SegmentsOverlap",
    "NoPayload",
    "PositionMisplaced",
    "WriteResource",
    "ReplyResource",
    "System",
    "SegmentCount",
    "OtherMemory",
    "TooLong",
    "Gap",
];

/// What a campaign found.
#[derive(Debug, Default)]
pub struct Report {
    /// Messages with which something was wrong.
    pub cases: u64,
    /// Those of them whose header was right.
    pub passed_header: u64,
    /// All messages.
    pub messages: u64,
    /// How often each reason came up, and other names that were met.
    pub counts: BTreeMap<&'static str, u64>,
}

impl Report {
    fn count(&mut self, name: &'static str) {
        *self.counts.entry(name).or_default() += 1;
    }

    /// How often a reason came up.
    #[must_use]
    pub fn of(&self, reason: &str) -> u64 {
        self.counts.get(reason).copied().unwrap_or(0)
    }

    /// What the campaign did not reach: reasons that came up less than once in 10 000 cases, and a header that was
    /// right in less than one case of ten.
    #[must_use]
    pub fn shortfalls(&self) -> Vec<String> {
        let least = (self.cases / 10_000).max(1);
        let mut shortfalls: Vec<String> = REASONS
            .into_iter()
            .filter(|reason| self.of(reason) < least)
            .map(|reason| {
                format!(
                    "{reason}: {} times, and {least} were wanted",
                    self.of(reason)
                )
            })
            .collect();
        if self.passed_header * 10 < self.cases {
            shortfalls.push(format!("only {} headers were right", self.passed_header));
        }
        shortfalls
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            cases,
            passed_header,
            messages,
            ..
        } = self;
        writeln!(
            f,
            "{cases} cases in {messages} messages, {passed_header} with a right header"
        )?;
        for (name, count) in &self.counts {
            writeln!(f, "{count:>12}  {name}")?;
        }
        Ok(())
    }
}

/// A connection in some state, and the oracle in the same.
struct Scene {
    settings: Rc<Settings>,
    connection: Connection,
    model: Model,
}

/// Shows the messages of a run that failed.
struct Shown<'a>(&'a [Marked], usize);

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for (message, is_hostile) in self.0 {
                let hex: String = message.iter().map(|octet| format!("{octet:02x}")).collect();
                eprintln!("{} {hex}", if *is_hostile { "hostile" } else { "right  " });
            }
            eprintln!("failed in scene {}", self.1);
        }
    }
}

/// Runs so many cases. The same seed gives the same cases.
///
/// # Panics
/// When a connection and the oracle do not agree, or a walk finds what must not be.
#[must_use]
pub fn run(cases: u64, seed: u64) -> Report {
    let scenes = scenes();
    let mut random = Random(seed);
    let mut report = Report::default();
    while report.cases < cases {
        let index = random.below(scenes.len());
        let scene = &scenes[index];
        // Each word of a message in turn, with one value each; or anything.
        if random.once_in(64) {
            let messages = run_of(scene, &mut random);
            let value = random.pick(&VALUES);
            for at in 0..messages.len() {
                for word in 0..messages[at].len().min(256) / 4 {
                    let marked =
                        messages
                            .iter()
                            .cloned()
                            .enumerate()
                            .map(|(index, mut message)| {
                                if index == at {
                                    set_word(&mut message, word, value);
                                }
                                (message, index >= at)
                            });
                    play(
                        scene,
                        &marked.collect::<Vec<_>>(),
                        index,
                        &mut random,
                        &mut report,
                    );
                }
            }
            continue;
        }
        let marked = match random.below(16) {
            0 => (0..=random.below(3))
                .map(|_| (noise(&mut random), true))
                .collect(),
            _ => {
                let messages = run_of(scene, &mut random);
                let other = run_of(scene, &mut random);
                disturb(messages, other, &mut random)
            }
        };
        play(scene, &marked, index, &mut random, &mut report);
    }
    report
}

/// Messages of one kind that are right, one after the other.
fn run_of(scene: &Scene, random: &mut Random) -> Vec<Vec<u8>> {
    let kind = random.below(128);
    let mut builder = Builder {
        settings: &scene.settings,
        random,
    };
    match kind {
        0..=19 => builder.message(),
        20..=27 => builder.long_message(),
        28..=47 => builder.sequence(),
        48..=51 => builder.grant(),
        52..=55 => builder.error(),
        56..=63 => builder.report(),
        64..=66 => builder.version_1(),
        67..=74 => builder.properties(),
        75..=82 => builder.continued_properties(),
        83 => builder.many_chunks(),
        84 => builder.many_items(),
        _ => builder.group(),
    }
}

/// Gives messages to a connection, one after the other.
fn play(scene: &Scene, marked: &[Marked], index: usize, random: &mut Random, report: &mut Report) {
    let _shown = Shown(marked, index);
    let mut connection = scene.connection.clone();
    let mut model = scene.model.clone();
    let mut walk = Walk::default();
    let announced = scene.connection.properties().rtr_support;
    for (message, is_hostile) in marked {
        let expected = model.handle(message);
        let event = connection.handle_message(message);
        connection.handle_receives_posted(1);
        let found = compare::verdict(&event, message, &connection);
        assert_eq!(found, expected);
        let is_over = connection.phase() == Phase::Closed;
        if !is_over {
            let credits = connection.credits();
            assert_eq!((credits.unconsumed(), credits.unused()), model.credits());
        }
        for name in walk.event(&event, message, &connection, random) {
            report.count(name);
        }
        report.messages += 1;
        if !is_hostile {
            continue;
        }
        report.cases += 1;
        let version_is_right = message.get(4..8) == Some(&[0, 0, 0, 2]);
        let is_right = wire::read(message, scene.settings.announced).is_ok();
        report.passed_header += u64::from(version_is_right && is_right);
        if let Some(name) = name_of(&found) {
            report.count(name);
        }
        if found == Verdict::Discarded(Discarded::Over) {
            break;
        }
        if let Err(error) = decode_with_rtr(message, announced) {
            let name = format!("header {:?}", error.reason);
            if let Some(known) = REASONS.iter().find(|known| **known == name) {
                report.count(known);
            }
        }
    }
}

/// The reason for which a message was not taken.
fn name_of(verdict: &Verdict) -> Option<&'static str> {
    Some(match verdict {
        Verdict::Refused(words, _)
            if words[1] != 2 || words[4] == 1 && words.len() == 7 && words[2] == 1 =>
        {
            "error VERS"
        }
        Verdict::Refused(words, _) => match words[5] {
            2 => "error BAD_XDR",
            3 => "error INVAL_HTYPE",
            4 => "error INVAL_FLAG",
            6 => "error WRITE_CHUNKS",
            7 => "error SEGMENTS",
            10 => "error SYSTEM",
            other => panic!("error {other} answers no message by itself"),
        },
        Verdict::ReportError(words, _) => {
            let code_at = if words[8] == 1 { 12 } else { 9 };
            match words[code_at] {
                1 => "report BADHMT",
                3 => "report BADCONT",
                4 => "report BADSEQ",
                5 => "report BADXID",
                6 => "report BADOFF",
                7 => "report BADTBSN",
                8 => "report BADPL",
                other => panic!("report {other} is never sent"),
            }
        }
        Verdict::Discarded(reason) => match reason {
            Discarded::Short => "discarded: short",
            Discarded::Broken(_) => "discarded: part is missing",
            Discarded::Rest => "discarded: rest of what was given up",
            Discarded::Mismatch(_) => "discarded: reply contradicts its header",
            Discarded::TooLong(_) => "discarded: reply is too long",
            Discarded::UnexpectedError => "discarded: unexpected error",
            Discarded::Over => "discarded: connection is over",
        },
        Verdict::Closed(reason) => match reason {
            Closed::OverSend => "closed: no credit",
            Closed::OverGrant => "closed: too many credits",
            Closed::VersionChanged => "closed: other version",
            Closed::BadError => "closed: bad error",
            Closed::BadReply(words) => match words[0] {
                2 => "closed: BAD_XDR in a reply",
                3 => "closed: INVAL_HTYPE in a reply",
                4 => "closed: INVAL_FLAG in a reply",
                6 => "closed: WRITE_CHUNKS in a reply",
                7 => "closed: SEGMENTS in a reply",
                _ => "closed: another error in a reply",
            },
        },
        _ => return None,
    })
}

// ---- Scenes ----

/// Every kind of receiver, fresh, established, and established with a peer that has no credit left.
fn scenes() -> Vec<Scene> {
    let bulk = vec![
        (256, false),
        (192, true),
        (192, true),
        (64, false),
        (128, true),
    ];
    let front = vec![
        (512, true),
        (128, false),
        (96, true),
        (96, true),
        (96, true),
    ];
    let plain = vec![(1024, false)];
    let mut scenes = Vec::new();
    for (announced, segments, weight) in [
        (7, bulk.clone(), 3),
        (7, front, 3),
        (0, plain, 1),
        (1, bulk.clone(), 1),
        (6, bulk, 1),
    ] {
        let settings = Rc::new(Settings {
            announced,
            segments,
            message_bytes_max: 160,
            transmissions_max: 4,
        });
        for _ in 0..weight {
            for role in [Role::Server, Role::Client] {
                for _ in 0..4 {
                    scenes.push(established(&settings, role, 64));
                }
            }
        }
        scenes.push(established(&settings, Role::Server, 3));
        scenes.push(fresh(&settings));
    }
    scenes
}

fn config(settings: &Settings, role: Role, receive_reserve: u16) -> Config {
    let groups: Vec<SegmentGroup> = settings
        .segments
        .iter()
        .map(|(length_bytes, is_targetable)| SegmentGroup {
            count: 1,
            segment: BufferSegment {
                length_bytes: *length_bytes,
                align_bytes: 0,
                is_targetable: *is_targetable,
            },
        })
        .collect();
    let structure = ReceiveBufferStructure::new(&groups).expect("sound");
    Config {
        role,
        receive_reserve,
        properties: Properties {
            receive_buffer_bytes: structure.length_bytes(),
            receive_buffer_structure: Some(structure),
            rtr_support: RtrSupport::from_word(settings.announced),
            request_transmissions_max: settings.transmissions_max,
            response_transmissions_max: 4,
            ..Properties::default()
        },
        message_bytes_max: settings.message_bytes_max,
    }
}

fn fresh(settings: &Rc<Settings>) -> Scene {
    let connection = Connection::new(&config(settings, Role::Server, 64));
    Scene {
        settings: Rc::clone(settings),
        model: model(settings, &connection, true),
        connection,
    }
}

/// A connection over which properties have passed both ways. With a reserve of 3 the peer has two credits.
fn established(settings: &Rc<Settings>, role: Role, receive_reserve: u16) -> Scene {
    let mut connection = Connection::new(&config(settings, role, receive_reserve));
    let mut space = [0; 1024];
    if role == Role::Client {
        connection
            .encode_properties(&mut space, 1)
            .expect("the first message");
    }
    let hello = [9, 2, (CREDITS_MAX << 16) | 30, wire::CONNPROP, 0, 0];
    let hello: Vec<u8> = hello.into_iter().flat_map(u32::to_be_bytes).collect();
    let event = connection.handle_message(&hello);
    assert!(matches!(event, Event::Properties { .. }), "{event:?}");
    connection.handle_receives_posted(1);
    connection
        .encode_properties(&mut space, 2)
        .expect("there are credits");
    Scene {
        settings: Rc::clone(settings),
        model: model(settings, &connection, false),
        connection,
    }
}

fn model(settings: &Rc<Settings>, connection: &Connection, is_fresh: bool) -> Model {
    let credits = connection.credits();
    Model::new(
        Rc::clone(settings),
        is_fresh,
        credits.unconsumed(),
        credits.unused(),
    )
}
