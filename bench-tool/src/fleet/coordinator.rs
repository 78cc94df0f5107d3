//! The coordinator: launches the agents, compares their clocks with its own, starts their loads at the same time, and
//! collects their reports. A client that fails is named and left out; the others go on.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::client::{Client, State};
use super::clock::{FleetClock, Offset, ROUND_TRIPS, RoundTrip};
use super::config::FleetConfig;
use super::launch::{Event, Process, Told, allow_open_files};
use super::live::FleetMetrics;
use super::plan::{delay_ns, divide};
use super::protocol::{BytesMax, FromAgent, Share, ToAgent, Versions};
use super::round::{Failed, Reported, RoundPlan, RoundResult};
use crate::exit::Failure;
use crate::progress::{Progress, ProgressLine, say};
use crate::signals::StopTwice;
use rpcrdma_units::duration;

/// How often to look for silent clients and signals.
const LOOK_PERIOD: Duration = Duration::from_millis(50);

/// Time between the start message and the start, without the time that the message may need.
const LEAD: Duration = Duration::from_millis(100);

/// The same for each client: sending takes time.
const LEAD_PER_CLIENT: Duration = Duration::from_micros(200);

/// How long the reports may take to begin after a stop request: calls that are in flight get half a minute or, over
/// NFS, one. A report that is arriving may take longer.
const STOP_TIMEOUT: Duration = Duration::from_secs(75);

/// How long the agents may take to end after the last round.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// How long to wait for the exit statuses of agents whose output has ended, before signals are looked at again. They come
/// right behind, unless the machine is too busy to end the processes.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);

/// How long to wait for its last words, when it has ended. A process that it leaves may keep its standard error open.
const LAST_WORDS_TIMEOUT: Duration = Duration::from_millis(200);

/// If this process did not run for so long, silence of the clients means nothing.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Events that are handled before signals and deadlines are looked at again.
const EVENTS_PER_LOOK: usize = 1024;

/// Events of each client that wait to be handled. One sends a few in a second.
const EVENTS_PER_CLIENT: usize = 16;

/// The agents of a fleet. The drop kills those that are left.
pub(crate) struct Fleet<'a> {
    config: &'a FleetConfig,
    clock: FleetClock,
    clients: Vec<Client>,
    events: Receiver<Event>,
    // Keeps the channel open when all agents have ended.
    _sender: SyncSender<Event>,
    failed: Vec<Failed>,
    /// How many of these the results of earlier rounds have.
    failed_before: usize,
    /// This round, or the last one.
    round: RoundPlan,
    /// Processes of lost clients, which were asked to end.
    leaving: Vec<Process>,
    progress: Progress,
    metrics: Option<FleetMetrics>,
    signals: &'a StopTwice,
    /// When the reports have to be there after a stop request; `None` before it.
    stop_deadline: Option<Instant>,
    looked: Instant,
    /// When this look no longer waits for exit statuses of agents.
    patience: Instant,
    /// When this process went on after a pause. Silence before that means nothing.
    awake_since: Instant,
}

impl<'a> Fleet<'a> {
    /// Launches all agents. One that cannot be launched is a client that failed.
    pub(crate) fn launch(
        config: &'a FleetConfig,
        signals: &'a StopTwice,
        metrics: Option<FleetMetrics>,
    ) -> Self {
        // What a client sends beyond this waits in its pipe.
        let (sender, events) =
            mpsc::sync_channel(config.plan.clients.len() * EVENTS_PER_CLIENT + 1);
        let now = Instant::now();
        let mut fleet = Self {
            config,
            clock: FleetClock::start(),
            clients: config
                .plan
                .clients
                .iter()
                .map(|plan| Client::new(plan, now))
                .collect(),
            events,
            _sender: sender.clone(),
            failed: Vec::new(),
            failed_before: 0,
            round: RoundPlan::default(),
            leaving: Vec::new(),
            progress: Progress::new(config.plan.clients.len()),
            metrics,
            signals,
            stop_deadline: None,
            looked: now,
            patience: now + STATUS_TIMEOUT,
            awake_since: now,
        };
        allow_open_files(fleet.clients.len());
        for index in 0..fleet.clients.len() {
            let plan = &config.plan.clients[index];
            let words = config.launch.words_for(&plan.host, index);
            let bytes_max = BytesMax::of_agent(config.report_bytes_max);
            match Process::start(&words, (index, &plan.name(index)), &sender, bytes_max) {
                Ok(mut process) => {
                    process.say(&ToAgent::Hello(Versions::own()));
                    fleet.clients[index].process = Some(process);
                }
                Err(error) => {
                    let program = words.first().map_or("", String::as_str);
                    fleet.lose(index, format!("`{program}` cannot be started: {error}"));
                }
            }
        }
        fleet
    }

    /// Runs a load on all clients that are left.
    ///
    /// # Errors
    /// A second signal.
    pub(crate) fn round(&mut self, plan: RoundPlan) -> Result<RoundResult, Failure> {
        for index in self.indices(|it| it.is_spent && !it.state.is_out()) {
            let why = "it was stopped there, and takes no more part";
            self.lose(index, why.to_owned());
            // The round in which that happened has named it.
            self.failed_before = self.failed.len();
        }
        self.round = plan;
        let rate_per_s = self.round.rate_per_s;
        let of_round: Vec<usize> = self.indices(|it| !it.state.is_out());
        let each = |rate: u64| divide(rate.max(of_round.len() as u64), of_round.len());
        let rates = rate_per_s.map(each).transpose()?;
        for (place, &index) in of_round.iter().enumerate() {
            let rate = rates.as_ref().and_then(|it| it.get(place).copied());
            let client = &mut self.clients[index];
            client.share = Some(Share {
                shows_latency: self.metrics.is_some(),
                ..client.plan.share(index, rate, &self.round.options)
            });
            client.round_trips.clear();
            client.reported = None;
            if client.state != State::Launched {
                client.prepare();
            }
        }
        let deadline = Instant::now() + self.config.start_timeout;
        while self.clients.iter().any(Client::is_before_start) && !self.signals.is_asked() {
            self.look()?;
            if Instant::now() >= deadline {
                for index in self.indices(Client::is_before_start) {
                    let limit = duration(self.config.start_timeout);
                    self.lose(index, format!("not ready within {limit} (--start-timeout)"));
                }
            }
        }
        if !self.signals.is_asked() {
            self.start(rate_per_s);
        }
        let line = ProgressLine::start(&self.progress, self.config.expected, self.config.quiet);
        while self.clients.iter().any(Client::is_in_round) {
            self.look()?;
        }
        drop(line);
        Ok(self.result(rate_per_s.is_some()))
    }

    /// Whether a client takes no part in further rounds.
    pub(crate) fn is_out(&self, client: usize) -> bool {
        let is_out = |it: &Client| it.is_spent || it.state.is_out();
        self.clients.get(client).is_none_or(is_out)
    }

    /// How many clients are left that could take part in another round.
    pub(crate) fn clients_left(&self) -> usize {
        let left = (0..self.clients.len()).filter(|it| !self.is_out(*it));
        left.count()
    }

    /// Ends all agents.
    pub(crate) fn end(mut self) {
        let processes = self.clients.iter_mut().filter_map(|it| it.process.take());
        self.leaving.extend(processes);
        self.leaving.iter_mut().for_each(Process::close);
        let deadline = Instant::now() + END_TIMEOUT;
        for process in &mut self.leaving {
            process.wait_until(deadline);
        }
    }

    fn indices(&self, is_wanted: impl Fn(&Client) -> bool) -> Vec<usize> {
        let clients = self.clients.iter().enumerate();
        let wanted = clients.filter(|(_, client)| is_wanted(client));
        wanted.map(|(index, _)| index).collect()
    }

    /// Gives all waiting clients the same start.
    fn start(&mut self, rate_per_s: Option<u64>) {
        let waiting = self.indices(|it| it.state == State::Waiting);
        let count = u32::try_from(waiting.len()).unwrap_or(u32::MAX);
        let offsets = waiting.iter().filter_map(|it| self.clients[*it].offset);
        // A message takes half a round trip, which is the uncertainty of the offset.
        let way_ns = offsets.map(|it| it.uncertainty_ns).max().unwrap_or(0);
        let lead = LEAD + LEAD_PER_CLIENT * count + Duration::from_nanos(way_ns) * 4;
        let start_ns = self.clock.at(Instant::now() + lead);
        for (place, &index) in waiting.iter().enumerate() {
            let delay = rate_per_s.map_or(0, |rate| delay_ns(place, rate));
            let client = &mut self.clients[index];
            client.start_ns = start_ns.saturating_add(delay);
            client.state = State::Started;
            if let Some(offset) = client.offset {
                let agent_ns = offset.to_agent(client.start_ns);
                client.say(&ToAgent::Start { agent_ns });
            }
        }
    }

    /// Waits a moment for events and handles them; then looks for silent clients and for signals.
    ///
    /// # Errors
    /// A second signal.
    fn look(&mut self) -> Result<(), Failure> {
        // WAIT: `LOOK_PERIOD`. The coordinator waits for agents nowhere else, and for no longer.
        let first = self.events.recv_timeout(LOOK_PERIOD);
        self.patience = Instant::now() + STATUS_TIMEOUT;
        match first {
            Ok(event) => self.handle(event),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
        }
        // No more at a time, so that a client that floods cannot keep signals and deadlines from being looked at.
        for _ in 0..EVENTS_PER_LOOK {
            let Ok(event) = self.events.try_recv() else {
                break;
            };
            self.handle(event);
        }
        let now = Instant::now();
        let pause = now.saturating_duration_since(self.looked);
        if pause > PAUSE_MAX {
            // What the clients said meanwhile may not be read yet.
            self.awake_since = now;
            self.stop_deadline = self.stop_deadline.map(|it| it + pause);
        }
        self.looked = now;
        self.look_for_silence(now);
        self.follow_signals(now)?;
        let running = self.indices(Client::is_in_round).len();
        let all = self.clients.len();
        let note = match &*self.round.note {
            "" => String::new(),
            note => format!(", {note}"),
        };
        self.progress
            .note(format!("{running} of {all} clients{note}"));
        if let Some(metrics) = &self.metrics {
            let count = |name| (name, self.indices(|it| it.state.name() == name).len());
            metrics.set_clients(State::NAMES.map(count).to_vec());
        }
        Ok(())
    }

    /// Goes on with messages that agents have not read, and leaves out clients that read nothing, or say nothing.
    fn look_for_silence(&mut self, now: Instant) {
        let limit = self.config.silence_timeout;
        let awake_since = self.awake_since;
        for index in 0..self.clients.len() {
            let process = self.clients[index].process.as_mut();
            let since = process
                .and_then(Process::go_on)
                .map(|it| it.max(awake_since));
            if since.is_some_and(|it| now.saturating_duration_since(it) > limit) {
                let limit = duration(limit);
                let why = format!(
                    "it has read no message for {limit} (--silence-timeout): it hangs, or its network is down"
                );
                // It would not see the end of its input, so the drop kills it.
                drop(self.take_out(index, why));
            }
        }
        let is_silent = |it: &Client| {
            let speaks = it.is_in_round() && it.state != State::Launched;
            // A report that takes long to arrive is no silence.
            let since = it.wrote().max(awake_since);
            speaks && now.saturating_duration_since(since) > limit
        };
        for index in self.indices(is_silent) {
            let limit = duration(limit);
            let why = format!(
                "no message for {limit} (--silence-timeout): it is stopped or hangs, or its network is down"
            );
            // It would not see the end of its input, so the drop kills it.
            drop(self.take_out(index, why));
        }
    }

    fn follow_signals(&mut self, now: Instant) -> Result<(), Failure> {
        if self.signals.second().is_some() {
            return Err(Failure::failed("stopped by a second signal"));
        }
        if !self.signals.is_asked() {
            return Ok(());
        }
        match self.stop_deadline {
            None => {
                self.stop_deadline = Some(now + STOP_TIMEOUT);
                let in_round = self.indices(Client::is_in_round);
                in_round.into_iter().for_each(|index| self.stop(index));
            }
            Some(deadline) if now >= deadline => {
                // A report that is arriving is waited for: it ends, or its client falls silent.
                let is_late = |it: &Client| it.is_in_round() && !it.is_in_message();
                for index in self.indices(is_late) {
                    let limit = duration(STOP_TIMEOUT);
                    self.lose(index, format!("no report within {limit} after the stop"));
                }
            }
            Some(_) => {}
        }
        Ok(())
    }

    /// Asks a client for the report of what it has measured. In whatever state it is, it needs no start for that.
    fn stop(&mut self, index: usize) {
        let client = &mut self.clients[index];
        if client.state == State::Launched {
            // It has no load yet, and did not fail.
            self.put_out(index);
        } else {
            client.state = State::Started;
            client.say(&ToAgent::Stop);
        }
    }

    /// Leaves a client out of this round and the next ones that was stopped before its calls, and did not fail.
    fn put_out(&mut self, index: usize) {
        let client = &mut self.clients[index];
        client.state = State::Stopped;
        if let Some(mut process) = client.process.take() {
            process.close();
            self.leaving.push(process);
        }
        if let Some(metrics) = &self.metrics {
            metrics.end(index, false);
        }
    }

    fn handle(&mut self, event: Event) {
        let Event { client, at, told } = event;
        if self.clients[client].state.is_out() {
            return;
        }
        self.clients[client].heard = at;
        match told {
            Told::Message(message) => self.follow(client, message, at),
            Told::Rubbish(why) => self.lose(client, why),
            Told::End => {
                let why = self.why_ended(client);
                self.lose(client, why);
            }
        }
    }

    fn follow(&mut self, index: usize, message: FromAgent, at: Instant) {
        let client = &mut self.clients[index];
        match (message, client.state) {
            (
                FromAgent::Hello {
                    versions,
                    process_id,
                    node,
                },
                State::Launched,
            ) => {
                if let Some(why) = Versions::own().refuses(&client.plan.host, &versions) {
                    return self.lose(index, why);
                }
                (client.process_id, client.node) = (process_id, node);
                client.state = State::Idle;
                client.prepare();
            }
            (FromAgent::Progress(figures), state) if state != State::Launched => {
                if let Some(progress) = self.progress.core(index) {
                    progress.publish(figures.calls, figures.errors);
                }
                if let Some(metrics) = &self.metrics {
                    metrics.set_figures(index, figures);
                }
            }
            (FromAgent::Ready, State::Preparing) => {
                client.state = State::Timing;
                client.ask_clock(self.clock);
            }
            // A stop came between.
            (FromAgent::Ready | FromAgent::Clock { .. }, State::Started) => {}
            (FromAgent::Clock { number, agent_ns }, State::Timing)
                if usize::try_from(number).is_ok_and(|it| it == client.round_trips.len()) =>
            {
                client.round_trips.push(RoundTrip {
                    sent_ns: client.asked_ns,
                    agent_ns,
                    received_ns: self.clock.at(at),
                });
                if number + 1 < ROUND_TRIPS {
                    client.ask_clock(self.clock);
                } else {
                    client.offset = Offset::of(&client.round_trips);
                    client.state = State::Waiting;
                }
            }
            (
                FromAgent::Report {
                    report,
                    started_ns,
                    failure,
                },
                State::Started,
            ) => self.take_report(index, (report, started_ns, failure), at),
            // Its load does not wait for the start when a signal reaches the agent.
            (
                FromAgent::Report { report, .. },
                state @ (State::Preparing | State::Timing | State::Waiting),
            ) if report["interrupted"] == true => {
                let why = "it was stopped there by a signal, before its calls".to_owned();
                self.note_failure(index, state.words(), why);
                self.put_out(index);
            }
            (FromAgent::Failed { why }, state) => {
                if !self.round.keeps_failed || !client.is_in_round() {
                    return self.lose(index, why);
                }
                client.state = State::Failed;
                if let Some(metrics) = &self.metrics {
                    metrics.end(index, false);
                }
                self.note_failure(index, state.words(), why);
            }
            (message, state) => {
                let name = serde_json::to_value(&message).ok();
                let name = name.as_ref().and_then(|it| it["message"].as_str());
                let name = name.unwrap_or("message").to_owned();
                let when = state.words();
                self.lose(
                    index,
                    format!("it sent `{name}` {when}, which is out of turn"),
                );
            }
        }
    }

    fn take_report(
        &mut self,
        index: usize,
        (report, started_ns, failure): (Value, Option<u64>, Option<String>),
        at: Instant,
    ) {
        let is_stopped = self.signals.is_asked();
        let client = &mut self.clients[index];
        client.state = State::Reported;
        client.is_spent = failure.is_none() && report["interrupted"] == true && !is_stopped;
        if let Some(metrics) = &self.metrics {
            metrics.end(index, false);
        }
        let offset = client.offset;
        let skew = started_ns.zip(offset).map(|(started_ns, offset)| {
            let planned = i64::try_from(client.start_ns).unwrap_or(i64::MAX);
            (
                offset.to_own(started_ns).saturating_sub(planned),
                offset.uncertainty_ns,
            )
        });
        client.reported = Some(Reported {
            client: index,
            plan: client.plan.clone(),
            node: client.node.clone(),
            process_id: client.process_id,
            report,
            failure: failure.clone(),
            skew,
            at,
        });
        if let Some(why) = failure {
            self.note_failure(index, "in its calls", why);
        }
    }

    fn note_failure(&mut self, client: usize, when: &'static str, why: String) {
        let Client { plan, state, .. } = &self.clients[client];
        let rest = match state {
            State::Failed => "it takes part in the next run",
            _ => "the others go on",
        };
        say(&format!(
            "bench-tool: {} failed {when}: {why}; {rest}",
            plan.name(client)
        ));
        let host = plan.host.clone();
        self.failed.push(Failed {
            client,
            host,
            when: when.into(),
            why,
        });
    }

    /// Leaves a client out of this round and the next ones. Its process is asked to end.
    fn lose(&mut self, index: usize, why: String) {
        if let Some(mut process) = self.take_out(index, why) {
            process.close();
            self.leaving.push(process);
        }
    }

    fn take_out(&mut self, index: usize, why: String) -> Option<Process> {
        let when = self.clients[index].state.words();
        self.note_failure(index, when, why);
        let client = &mut self.clients[index];
        client.state = State::Lost;
        if let Some(metrics) = &self.metrics {
            metrics.end(index, true);
        }
        client.process.take()
    }

    /// Why an agent ended on its own.
    fn why_ended(&mut self, index: usize) -> String {
        let Some(process) = &mut self.clients[index].process else {
            return "it ended".to_owned();
        };
        let status = process.wait_until(self.patience);
        let ended = status.map_or_else(
            || "its standard output was closed".to_owned(),
            |status| format!("it ended ({status})"),
        );
        let now = Instant::now();
        match process.last_error(now.min(self.patience) + LAST_WORDS_TIMEOUT) {
            Some(last) => format!("{ended}: {last}"),
            None => ended,
        }
    }

    fn result(&mut self, is_open: bool) -> RoundResult {
        let rates = self.clients.iter().filter(|it| it.reported.is_some());
        let rates = rates.filter_map(|it| it.share.as_ref()?.rate_per_s);
        let rate_per_s = is_open.then(|| rates.sum());
        let before = &self.failed[..self.failed_before];
        let is_kept =
            |it: &&Failed| !self.round.keeps_failed || self.clients[it.client].state.is_out();
        let mut failed: Vec<Failed> = before.iter().filter(is_kept).cloned().collect();
        let failed_before = failed.len();
        failed.extend_from_slice(&self.failed[self.failed_before..]);
        self.failed_before = self.failed.len();
        RoundResult {
            reported: self
                .clients
                .iter_mut()
                .filter_map(|it| it.reported.take())
                .collect(),
            failed,
            failed_before,
            rate_per_s,
            interrupted: self.signals.is_asked(),
        }
    }
}

#[cfg(test)]
mod tests;
