//! Tests of the coordinator, whose agents are shell scripts.

use super::*;
use crate::fleet::config::FleetWork;
use crate::fleet::launch::Launch;
use crate::fleet::plan::FleetPlan;
use crate::fleet::protocol::PROTOCOL;
use rpcrdma_testkit::{PATIENCE, Seen, Wait};

/// A configuration whose agents are this shell script, with the number of the client in `$0`. It begins after the
/// agent's hello.
fn config(clients: usize, script: &str) -> FleetConfig {
    let script = format!(
        r#"echo '{{"message":"hello","protocol":{PROTOCOL},"version":"{}","process_id":1,"node":"n"}}'; {script}"#,
        crate::VERSION
    );
    let quoted = shlex::try_quote(&script).unwrap();
    FleetConfig {
        command: String::new(),
        plan: FleetPlan::new(&vec!["a".to_owned(); clients], &[], None, &[]).unwrap(),
        launch: Launch::parse(&format!("sh -c {quoted} {{index}}")).unwrap(),
        client_command: String::new(),
        work: FleetWork::Once(None),
        expected: None,
        start_timeout: PATIENCE,
        // Longer than any wait of a test: nobody is lost by silence, unless a test says what time it is.
        silence_timeout: PATIENCE * 5,
        report_bytes_max: 1 << 20,
        quiet: true,
    }
}

/// Looks until `seen` says that it is there, or that it can no longer come.
#[track_caller]
fn look_until(fleet: &mut Fleet<'_>, what: &str, seen: impl Fn(&Fleet<'_>) -> Seen<()>) {
    let wait = Wait::begin(what);
    loop {
        match seen(fleet) {
            Seen::Reached(()) => return,
            Seen::Passed(instead) => panic!("{what}: {instead}: {}", shown(fleet)),
            Seen::NotYet => wait.look(|| shown(fleet)),
        }
        fleet.look().unwrap();
    }
}

/// Looks until a client that is in state `from` is in state `to`: it goes there without one between, or never.
#[track_caller]
fn look_through(fleet: &mut Fleet<'_>, client: usize, from: State, to: State) {
    let what = format!("client {client} from {from:?} to {to:?}");
    look_until(fleet, &what, |fleet| match fleet.clients[client].state {
        state if state == to => Seen::Reached(()),
        state if state == from => Seen::NotYet,
        _ => Seen::Passed("it is in another state"),
    });
}

fn states(fleet: &Fleet<'_>) -> Vec<State> {
    fleet.clients.iter().map(|it| it.state).collect()
}

/// For messages of failures.
fn shown(fleet: &Fleet<'_>) -> String {
    format!("{:?}, failed: {:?}", states(fleet), fleet.failed)
}

/// Launches the fleet; its clients run when this returns. One look may handle all that a client has sent, so the
/// script of a client must say nothing behind its hello before it has read a cue: the hello of the coordinator is none,
/// because it is sent at the launch.
#[track_caller]
fn running<'a>(config: &'a FleetConfig, signals: &'a StopTwice) -> Fleet<'a> {
    let mut fleet = Fleet::launch(config, signals, None);
    for client in 0..fleet.clients.len() {
        look_through(&mut fleet, client, State::Launched, State::Idle);
    }
    fleet
        .clients
        .iter_mut()
        .for_each(|it| it.state = State::Started);
    fleet
}

#[test]
fn a_client_that_is_stopped_before_its_calls_is_named_as_stopped() {
    let script = r#"
        read hello; read cue
        printf '{"message":"report","report":{"interrupted":'; test $0 = 0 && printf true || printf false
        echo '},"started_ns":null,"failure":"no call was complete"}'
        read cue"#;
    let config = config(2, script);
    for state in [State::Preparing, State::Timing, State::Waiting] {
        let signals = StopTwice::default();
        let mut fleet = running(&config, &signals);
        for client in &mut fleet.clients {
            client.state = state;
            client.say(&ToAgent::Stop);
        }
        look_through(&mut fleet, 0, state, State::Stopped);
        look_through(&mut fleet, 1, state, State::Lost);
        assert_eq!(states(&fleet), [State::Stopped, State::Lost]);
        assert!(fleet.is_out(0) && fleet.clients[0].process.is_none());
        fleet.failed.sort_by_key(|it| it.client);
        let [stopped, lost] = &fleet.failed[..] else {
            panic!("{:?}", fleet.failed);
        };
        assert_eq!(
            stopped.to_string(),
            format!(
                "client 0 on a {}: it was stopped there by a signal, before its calls",
                state.words()
            )
        );
        assert!(lost.why.contains("out of turn"), "{lost}");
    }
}

#[test]
fn a_report_that_arrives_is_waited_for_after_a_stop_and_no_other_client() {
    let script = r#"
        read hello; read cue
        printf '{"message":"report","report":{},'
        read cue
        echo '"started_ns":null,"failure":null}'
        read cue"#;
    let config = config(2, script);
    let signals = StopTwice::default();
    let mut fleet = running(&config, &signals);
    fleet.clients[0].say(&ToAgent::Stop);
    let what = "a part of a message";
    look_until(&mut fleet, what, |it| match it.clients[0].state {
        State::Started if it.clients[0].is_in_message() => Seen::Reached(()),
        State::Started => Seen::NotYet,
        _ => Seen::Passed("the client does not run any more"),
    });
    signals.stop().ask();
    // TIME: the deadline is read first, so that it is over at the second reading.
    fleet.stop_deadline = Some(Instant::now());
    fleet.follow_signals(Instant::now()).unwrap();
    assert_eq!(states(&fleet), [State::Started, State::Lost]);
    assert!(fleet.failed[0].why.contains("no report within"));
    fleet.clients[0].say(&ToAgent::Stop);
    look_through(&mut fleet, 0, State::Started, State::Reported);
    assert_eq!(states(&fleet), [State::Reported, State::Lost]);
}

#[test]
fn a_client_that_is_stopped_before_it_said_anything_did_not_fail() {
    let config = config(2, "read hello; read cue");
    let signals = StopTwice::default();
    let mut fleet = Fleet::launch(&config, &signals, None);
    signals.stop().ask();
    // TIME: there is no deadline yet, so that both readings can be any time.
    fleet.follow_signals(Instant::now()).unwrap();
    assert_eq!(states(&fleet), [State::Stopped; 2]);
    let told = Told::Message(FromAgent::Ready);
    let (client, at) = (0, Instant::now());
    fleet.handle(Event { client, at, told });
    assert!(fleet.failed.is_empty());
}

#[test]
fn a_client_whose_load_failed_takes_part_again_if_the_round_says_so() {
    let failed = r#"echo '{"message":"failed","why":"no room"}'"#;
    let config = config(
        1,
        &format!("read hello; read a; {failed}; read b; {failed}; cat"),
    );
    let failures = |keeps_failed: [bool; 2]| {
        let signals = StopTwice::default();
        let mut fleet = Fleet::launch(&config, &signals, None);
        keeps_failed.map(|keeps_failed| {
            let plan = RoundPlan {
                keeps_failed,
                ..RoundPlan::default()
            };
            let result = fleet.round(plan).unwrap();
            let new = result.failed.len() - result.failed_before;
            (result.failed_before, new, fleet.clients_left())
        })
    };
    // What failed before is of another combination.
    assert_eq!(failures([true, true]), [(0, 1, 1), (0, 1, 1)]);
    assert_eq!(failures([true, false]), [(0, 1, 1), (1, 1, 0)]);
    assert_eq!(failures([false, true]), [(0, 1, 0), (1, 0, 0)]);
}

#[test]
fn a_client_that_was_stopped_on_its_host_takes_no_part_in_the_next_round() {
    let report = r#"echo '{"message":"report","report":{"interrupted":true},"started_ns":null,"failure":null}'"#;
    let config = config(1, &format!("read hello; read cue; {report}; cat"));
    let signals = StopTwice::default();
    let mut fleet = running(&config, &signals);
    fleet.clients[0].say(&ToAgent::Stop);
    look_through(&mut fleet, 0, State::Started, State::Reported);
    assert!(fleet.clients_left() == 0 && fleet.failed.is_empty());
    let result = fleet.round(RoundPlan::default()).unwrap();
    assert_eq!((result.failed.len(), result.failed_before), (1, 1));
    assert!(result.failed[0].why.contains("was stopped there"));
}

#[test]
fn a_client_that_sends_too_much_is_named() {
    let config = config(
        1,
        r#"read hello; read cue
        printf '{"message":"ready","more":"'; head -c 70000 /dev/zero | tr '\\0' x; read cue"#,
    );
    let signals = StopTwice::default();
    let mut fleet = running(&config, &signals);
    fleet.clients[0].say(&ToAgent::Stop);
    look_through(&mut fleet, 0, State::Started, State::Lost);
    let failed = &fleet.failed[0];
    assert_eq!((failed.client, &failed.host[..]), (0, "a"));
    assert!(
        failed.why.contains("a line of more than 64 KiB"),
        "{failed:?}"
    );
}

#[test]
fn client_silence_is_counted_from_the_end_of_a_pause() {
    let config = config(1, "read hello; read cue");
    let signals = StopTwice::default();
    let mut fleet = running(&config, &signals);
    // TIME: the reading is before that of the look, which then has a pause of two seconds behind it on any machine.
    let at = Instant::now();
    fleet.looked = at.checked_sub(PAUSE_MAX * 2).unwrap();
    fleet.look().unwrap();
    let told = Told::Message(FromAgent::Progress(crate::progress::Figures::default()));
    fleet.handle(Event {
        client: 0,
        at,
        told,
    });
    let limit = config.silence_timeout;
    fleet.look_for_silence(fleet.awake_since + limit);
    assert_eq!(states(&fleet), [State::Started]);
    fleet.look_for_silence(fleet.awake_since + limit + Duration::from_millis(1));
    assert_eq!(states(&fleet), [State::Lost]);
}
