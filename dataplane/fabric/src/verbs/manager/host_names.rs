//! Resolves host names in a separate thread: a name server may take seconds to answer, and the
//! control thread serves all connections.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};

use crate::verbs::cm::address::Target;

/// The addresses of a host, and the connection that asked for them.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) connection: u64,
    pub(super) addresses: io::Result<Vec<SocketAddr>>,
}

/// The resolving thread, started with the first name. After this is dropped it finishes the current
/// name and ends.
pub(super) struct HostNames {
    wake: Arc<dyn Fn() + Send + Sync>,
    thread: Option<Thread>,
}

/// Our ends of the two channels to the thread.
struct Thread {
    questions: Sender<(u64, Target)>,
    answers: Receiver<Answer>,
}

impl HostNames {
    /// The thread calls `wake` after each answer.
    pub(super) fn new(wake: Arc<dyn Fn() + Send + Sync>) -> Self {
        Self { wake, thread: None }
    }

    /// Asks for the addresses of `target`.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub(super) fn ask(&mut self, connection: u64, target: Target) -> io::Result<()> {
        if self.thread.is_none() {
            self.thread = Some(start(Arc::clone(&self.wake))?);
        }
        if let Some(thread) = &self.thread {
            // This cannot fail: the thread ends only after this sender is dropped.
            let _ = thread.questions.send((connection, target));
        }
        Ok(())
    }

    /// The next answer, if there is one.
    pub(super) fn answer(&self) -> Option<Answer> {
        self.thread.as_ref()?.answers.try_recv().ok()
    }
}

fn start(wake: Arc<dyn Fn() + Send + Sync>) -> io::Result<Thread> {
    let (questions, asked) = mpsc::channel::<(u64, Target)>();
    let (answer, answers) = mpsc::channel();
    std::thread::Builder::new()
        .name("rpcrdma-names".to_owned())
        .spawn(move || {
            for (connection, target) in asked {
                let addresses = target.resolve();
                let told = answer.send(Answer {
                    connection,
                    addresses,
                });
                if told.is_err() {
                    return;
                }
                wake();
            }
        })?;
    Ok(Thread { questions, answers })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rpcrdma_testkit::PATIENCE;
    use std::sync::mpsc::channel;

    #[test]
    fn answers_come_in_order_and_wake() {
        let (woken, wakes) = channel();
        let mut names = HostNames::new(Arc::new(move || {
            let _ = woken.send(());
        }));
        assert!(names.answer().is_none());
        for (connection, text) in [(7, "rdma:localhost:1"), (8, "rdma:no-such-host.invalid:1")] {
            names.ask(connection, Target::parse(text).unwrap()).unwrap();
        }
        wakes.recv_timeout(PATIENCE).expect("the first answer");
        let first = names.answer().expect("it woke for an answer");
        assert_eq!(first.connection, 7);
        assert!(!first.addresses.unwrap().is_empty());
        wakes.recv_timeout(PATIENCE).expect("the second answer");
        let second = names.answer().expect("it woke for an answer");
        assert_eq!(second.connection, 8);
        assert!(second.addresses.is_err());
    }
}
