//! A client of a fleet as its coordinator sees it.

use std::time::Instant;

use super::clock::{FleetClock, Offset, RoundTrip};
use super::launch::Process;
use super::plan::ClientPlan;
use super::protocol::{Share, ToAgent};
use super::round::Reported;
use crate::sweep::runs::WHILE_IT_RAN;

/// Where a client is in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Its process was launched, and has said nothing.
    Launched,
    /// It has no round to run.
    Idle,
    /// It makes its connections.
    Preparing,
    /// It is ready, and its clock is being compared.
    Timing,
    /// It waits for the start.
    Waiting,
    /// It has a start, and perhaps runs.
    Started,
    /// Its report is here.
    Reported,
    /// Its load failed without a report, and its agent waits for the next round.
    Failed,
    /// It failed, and is out.
    Lost,
    /// It is out because somebody stopped it before its calls: the fleet before it said anything, or its agent.
    Stopped,
}

impl State {
    /// The names of all states, for metrics.
    pub(super) const NAMES: [&str; 8] = [
        "launching",
        "preparing",
        "ready",
        "running",
        "reported",
        "failed",
        "lost",
        "stopped",
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Launched => "launching",
            Self::Preparing => "preparing",
            Self::Idle | Self::Timing | Self::Waiting => "ready",
            Self::Started => "running",
            Self::Reported => "reported",
            Self::Failed => "failed",
            Self::Lost => "lost",
            Self::Stopped => "stopped",
        }
    }

    /// For the report of a failure.
    pub(super) const fn words(self) -> &'static str {
        match self {
            Self::Launched => "before it said anything",
            Self::Idle => "between two rounds",
            Self::Preparing => "while it prepared the load",
            Self::Timing => "while the clocks were compared",
            Self::Waiting => "while it waited for the start",
            Self::Started => WHILE_IT_RAN,
            Self::Reported => "after its report",
            Self::Failed | Self::Lost => "after its failure",
            Self::Stopped => "after the stop",
        }
    }

    /// Whether it takes no part any more.
    pub(super) const fn is_out(self) -> bool {
        matches!(self, Self::Lost | Self::Stopped)
    }
}

/// A client.
pub(super) struct Client {
    pub(super) plan: ClientPlan,
    pub(super) process: Option<Process>,
    pub(super) state: State,
    /// When its last message was received, or when it was launched.
    pub(super) heard: Instant,
    pub(super) node: String,
    pub(super) process_id: u32,
    /// What it runs in this round.
    pub(super) share: Option<Share>,
    pub(super) round_trips: Vec<RoundTrip>,
    /// When the open question about its clock was sent.
    pub(super) asked_ns: u64,
    pub(super) offset: Option<Offset>,
    /// The planned start by the coordinator's clock.
    pub(super) start_ns: u64,
    pub(super) reported: Option<Reported>,
    /// Whether somebody stopped its agent: each further load would end before its first call.
    pub(super) is_spent: bool,
}

impl Client {
    /// A client that is launched at `now`.
    pub(super) fn new(plan: &ClientPlan, now: Instant) -> Self {
        Self {
            plan: plan.clone(),
            process: None,
            state: State::Launched,
            heard: now,
            node: String::new(),
            process_id: 0,
            share: None,
            round_trips: Vec::new(),
            asked_ns: 0,
            offset: None,
            start_ns: 0,
            reported: None,
            is_spent: false,
        }
    }

    pub(super) fn say(&mut self, message: &ToAgent) {
        if let Some(process) = &mut self.process {
            process.say(message);
        }
    }

    pub(super) fn prepare(&mut self) {
        if let Some(share) = self.share.clone() {
            self.state = State::Preparing;
            self.say(&ToAgent::Prepare(share));
        }
    }

    pub(super) fn ask_clock(&mut self, clock: FleetClock) {
        let number = u32::try_from(self.round_trips.len()).unwrap_or(u32::MAX);
        self.asked_ns = clock.now();
        self.say(&ToAgent::Clock { number });
    }

    /// Whether it still has to do something before the start.
    pub(super) fn is_before_start(&self) -> bool {
        use State::{Launched, Preparing, Timing};
        matches!(self.state, Launched | Preparing | Timing)
    }

    /// Whether its report is awaited.
    pub(super) fn is_in_round(&self) -> bool {
        self.is_before_start() || matches!(self.state, State::Waiting | State::Started)
    }

    /// When it last wrote something: a message, or a part of one.
    pub(super) fn wrote(&self) -> Instant {
        let bytes = self.process.as_ref().map(Process::heard);
        bytes.map_or(self.heard, |bytes| bytes.max(self.heard))
    }

    /// Whether a part of a message has arrived, and not its end. While a long report arrives, nothing else does.
    pub(super) fn is_in_message(&self) -> bool {
        self.wrote() > self.heard
    }
}
