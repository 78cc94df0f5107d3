//! Which version nodes speak with each other (RFC 8166 section 7, -00 section 4.3.3).

use std::time::Duration;

use rpcrdma_control::{
    Authentication, ConnectError, ConnectOptions, ListenOptions, Stage, TargetEvent, Versions,
};

use rpcrdma_testkit::Wait;

use super::authentication::{client_host, connecting, server_host};
use super::targets::{next, soon};
use super::{listening, options};
use crate::support::{ECHO, Fabric, PATIENCE, TestNode, assert_is, foreign, profile, start};

/// A node that listens for these versions, and its address.
fn server<F: Fabric>(options: ListenOptions) -> (TestNode, String) {
    let (server, address) = (start::<F>(&profile(), 1), F::address());
    let listening = server.node.listen(&address, options);
    let address = listening.expect("the name is free").address;
    (server, address)
}

fn of(versions: Versions) -> ListenOptions {
    ListenOptions {
        versions,
        ..listening()
    }
}

fn asking(versions: Versions) -> ConnectOptions {
    ConnectOptions {
        versions,
        ..options()
    }
}

pub(crate) fn nodes_of_both_versions_agree_on_one<F: Fabric>() {
    use Versions::{Both, One, Two};
    for (client_versions, server_versions, version) in [
        (One, Both, 1),
        (One, One, 1),
        (Both, One, 1),
        (Both, Both, 2),
        (Two, Both, 2),
    ] {
        let (server, address) = server::<F>(of(server_versions));
        let mut client = start::<F>(&profile(), 1);
        let connection = client.node.connect(&address, asking(client_versions));
        let connection = connection.expect("they have one in common");
        assert_eq!(connection.version, version);
        for size in [0, 64, 900] {
            let args = vec![7; size];
            client.assert_echo(&connection, &args);
        }
        server.counts("connections_ready", 1);
    }
    let (_server, address) = server::<F>(of(Two));
    let client = start::<F>(&profile(), 1);
    let error = client.node.connect(&address, asking(One));
    // A server speaks only when it is spoken to: the version is known to be wrong with the first call.
    let connection = error.expect("nothing was sent yet");
    assert_eq!(connection.version, 1);
}

/// After ERR_VERS the next connection begins with version 1.
pub(crate) fn a_server_of_version_1_is_remembered<F: Fabric>() {
    let (server, address) = server::<F>(of(Versions::One));
    let mut client = start::<F>(&profile(), 1);
    // TIME: the client remembers it for a minute, and three connects take milliseconds, on a device a second.
    for _ in 0..3 {
        let connection = client.node.connect(&address, options());
        let connection = connection.expect("it falls back");
        assert_eq!(connection.version, 1);
        let args = vec![7; 100];
        client.assert_echo(&connection, &args);
    }
    let errors = server.node.cores()[0].counters().errors_sent_vers;
    assert_eq!(errors, 1, "it was asked for version 2 once");
}

/// A server that lets the first message be, and one that breaks the connection, may know no other version than 1.
pub(crate) fn a_server_that_does_not_answer_version_2_is_asked_for_version_1<F: Fabric>() {
    let address = F::address();
    let silent = foreign::start::<F>(&address, foreign::nothing);
    let client = start::<F>(&profile(), 1);
    let impatient = ConnectOptions {
        // TIME: a device connects in less; where it does not, the client tries again.
        timeout: Duration::from_secs(2),
        ..options()
    };
    let wait = Wait::begin("a connect that is asked for version 2");
    loop {
        let error = client.node.connect(&address, impatient.clone());
        match error.expect_err("nobody answers version 2") {
            ConnectError::Timeout {
                stage: Stage::ExchangingProperties,
                ..
            } => break,
            // On a slow machine the time can be up before the server was asked, which tells nothing of its versions.
            error => {
                assert_is!(error, ConnectError::Timeout { .. });
                wait.look(|| error.to_string());
            }
        }
    }
    // TIME: the client goes by the silence for a minute, and begins this connect in microseconds.
    let connection = client.node.connect(&address, options());
    let connection = connection.expect("version 1 has no first message of its own");
    assert_eq!(connection.version, 1);
    silent.stop();
}

/// So does libevpl of May 2026. The attempt itself goes on, and so does that of a target.
pub(crate) fn a_server_that_closes_at_version_2_is_asked_for_version_1_once<F: Fabric>() {
    let address = F::address();
    let old = foreign::start::<F>(&address, foreign::version_1_or_close);
    let mut client = start::<F>(&profile(), 1);
    for connects in [2, 3] {
        let connection = client.node.connect(&address, options());
        let connection = connection.expect("it speaks version 1");
        assert_eq!(connection.version, 1);
        // The foreign end sends no more than fits the entry of a Send: on a device that is 64 octets.
        client.assert_echo(&connection, &[7; 8]);
        // TIME: what it speaks is remembered for a minute, and the second connect takes milliseconds.
        client.counts("connects_sent", connects);
    }
    drop(client);
    old.stop();
    let address = F::address();
    let old = foreign::start::<F>(&address, foreign::version_1_or_close);
    let client = start::<F>(&profile(), 1);
    let target = client.node.keep_connected(&address, options(), soon());
    match next(&target) {
        TargetEvent::Established { connection } => assert_eq!(connection.version, 1),
        event => panic!("{event}"),
    }
    client.counts("target_attempts", 1);
    drop((target, client));
    old.stop();
    // One that closes every connection is not asked for ever.
    let address = F::address();
    let broken = foreign::start::<F>(&address, foreign::close);
    let mut client = start::<F>(&profile(), 1);
    let connection = client.node.connect(&address, options());
    let connection = connection.expect("version 1 begins with a call");
    client.call(&connection, ECHO, &[]).expect_err("it closes");
    client.counts("connects_sent", 2);
    broken.stop();
}

pub(crate) fn a_close_is_no_version_1_where_hosts_may_authenticate_themselves<F: Fabric>() {
    let address = F::address();
    let old = foreign::start::<F>(&address, foreign::version_1_or_close);
    let client = start::<F>(&profile(), 1);
    let policies = [
        Authentication::Required(client_host()),
        Authentication::Optional(client_host()),
    ];
    for (policy, connects) in policies.into_iter().zip(1..) {
        let error = client.node.connect(&address, connecting(policy));
        let error = error.expect_err("it closes");
        assert_is!(error, ConnectError::PeerGone { .. });
        client.counts("connects_sent", connects);
    }
    old.stop();
}

/// Who can cut the connections of a server does not choose the version.
pub(crate) fn a_close_is_no_version_1_where_version_2_was_answered<F: Fabric>() {
    let (server, address) = server::<F>(of(Versions::Both));
    let client = start::<F>(&profile(), 1);
    let connection = client.node.connect(&address, options());
    assert_eq!(connection.expect("it listens").version, 2);
    drop(server);
    let cutter = foreign::start::<F>(&address, foreign::version_1_or_close);
    for connects in [2, 3] {
        let error = client.node.connect(&address, options());
        let error = error.expect_err("it closes");
        assert_is!(error, ConnectError::PeerGone { .. });
        client.counts("connects_sent", connects);
    }
    cutter.stop();
}

/// A server that ended just as it was asked may have had version 2.
pub(crate) fn a_server_that_closed_and_left_is_asked_for_version_2_when_it_is_back<F: Fabric>() {
    let address = F::address();
    let ending = foreign::start_for_one::<F>(&address, foreign::close);
    let client = start::<F>(&profile(), 1);
    let error = client.node.connect(&address, options());
    let error = error.expect_err("nobody listens any more");
    assert_is!(
        error,
        ConnectError::PeerGone {
            stage: Stage::ExchangingProperties,
            ..
        }
    );
    client.counts("connects_sent", 2);
    ending.stop();
    let server = start::<F>(&profile(), 1);
    let listening = server.node.listen(&address, of(Versions::Both));
    listening.expect("the name is free");
    let connection = client.node.connect(&address, options());
    assert_eq!(connection.expect("it listens").version, 2);
}

pub(crate) fn where_hosts_authenticate_themselves_there_is_no_version_1<F: Fabric>() {
    let required = Authentication::Required(server_host());
    let (server, address) = server::<F>(ListenOptions {
        authentication: required,
        authentication_timeout: PATIENCE,
        versions: Versions::Both,
        ..ListenOptions::default()
    });
    let mut client = start::<F>(&profile(), 1);
    let connection = client.node.connect(&address, asking(Versions::One));
    // The client learns it with its first call.
    let connection = connection.expect("nothing was sent yet");
    client.call(&connection, ECHO, &[]).expect_err("refused");
    assert_eq!(server.node.cores()[0].counters().calls_received, 0);
    let proving = ConnectOptions {
        versions: Versions::One,
        ..connecting(Authentication::Required(client_host()))
    };
    let connection = client.node.connect(&address, proving);
    assert_eq!(connection.expect("both have the key").version, 2);
}
