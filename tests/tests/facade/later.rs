//! Calls that are answered later, from other threads.

use std::sync::mpsc::{Sender, channel};

use rpcrdma::Later;
use rpcrdma::prelude::*;
use rpcrdma_testkit::until;

use crate::{PATIENCE, PROGRAM, address, connect, profile};

const SLOW: Procedure = Procedure::new(PROGRAM, 1, 20);

/// Gives calls to another thread, with their argument.
struct Slow(Sender<(u32, Later)>);

impl Service for Slow {
    fn call(&mut self, call: &mut Incoming<'_>, _: &mut Reply<'_, '_>) -> Result<(), Refusal> {
        let number = call.args().u32()?;
        let later = call.later()?;
        self.0
            .send((number, later))
            .map_err(|_| Refusal::SystemError)
    }
}

#[test]
fn other_threads_answer() {
    let at = address();
    let (jobs, work) = channel::<(u32, Later)>();
    let server = Server::builder().profile(profile());
    let server = server.program(PROGRAM, 1..=1, move |_| Slow(jobs.clone()));
    let server = server.listen(&at).unwrap();
    let worker = std::thread::spawn(move || {
        for (number, later) in work {
            match number % 4 {
                0 => later.reply(|results| {
                    results.u32(number + 1);
                }),
                1 => later.refuse(Refusal::GarbageArgs),
                // Nobody answers: the caller is told.
                2 => drop(later),
                _ => {
                    let buffers = later.buffers();
                    let data = vec![u8::try_from(number % 256).unwrap(); 10_000];
                    let mut buffer = buffers.wait(data.len(), PATIENCE).unwrap();
                    buffer.copy_from(&data);
                    later.reply(|results| {
                        results.u32(number).bulk(buffer).u32(9);
                    });
                }
            }
        }
    });
    let client = connect(&at);
    let mut poller = client.poller(8).unwrap();
    let mut left = 400_u32;
    let mut next = 0_u32;
    while left > 0 {
        while next < 400 && !poller.is_full() {
            let mut request = poller.request(SLOW);
            request.u32(next).expect_bulk(65_536);
            poller.submit(&mut request, next.into()).unwrap();
            next += 1;
        }
        let ended = poller.wait().unwrap();
        left -= 1;
        let number = u32::try_from(ended.tag).unwrap();
        match (number % 4, ended.result) {
            (0, Ok(mut answer)) => assert_eq!(answer.results().u32().unwrap(), number + 1),
            (1, Err(error)) => assert_eq!(error.kind(), ErrorKind::GarbageArgs),
            (2, Err(error)) => assert_eq!(error.kind(), ErrorKind::SystemError),
            (3, Ok(mut answer)) => {
                let mut results = answer.results();
                assert_eq!(results.u32().unwrap(), number);
                let data = results.bulk().unwrap();
                assert_eq!(data.len(), 10_000);
                assert!(
                    data.pieces()
                        .flatten()
                        .all(|byte| u32::from(*byte) == number % 256)
                );
                assert_eq!(results.u32().unwrap(), 9);
            }
            (_, other) => panic!("call {number}: {other:?}"),
        }
    }
    drop((poller, client, server));
    worker.join().unwrap();
}

/// Each connection can have one deferred call beyond those that all of them share.
#[test]
fn as_many_answers_as_there_are_deferred_calls_have_room() {
    let at = address();
    let mut small = profile();
    small.deferred_replies_max = 1;
    let (jobs, work) = channel::<(u32, Later)>();
    let server = Server::builder().profile(small);
    let server = server.program(PROGRAM, 1..=1, move |_| Slow(jobs.clone()));
    let server = server.procedure(Procedure::new(PROGRAM + 1, 1, 1), {
        let work = std::sync::Mutex::new(work);
        // The core itself answers all others: it takes none of the answers meanwhile.
        move |_, _| {
            for (number, later) in work.lock().unwrap().try_iter() {
                later.reply(|results| {
                    results.u32(number);
                });
            }
            Ok(())
        }
    });
    let server = server.listen(&at).unwrap();
    let clients: Vec<_> = (0..4).map(|_| connect(&at)).collect();
    let mut pollers: Vec<_> = clients.iter().map(|it| it.poller(1).unwrap()).collect();
    for (poller, number) in pollers.iter_mut().zip(0..) {
        let mut request = poller.request(SLOW);
        poller.submit(request.u32(number), number.into()).unwrap();
    }
    until("four calls that are deferred", || {
        (server.metrics().total("deferred") >= Some(4)).then_some(())
    });
    clients[0]
        .call(Procedure::new(PROGRAM + 1, 1, 1), &[])
        .unwrap();
    for (poller, number) in pollers.iter_mut().zip(0..) {
        let ended = poller.wait().unwrap();
        assert_eq!(ended.result.unwrap().results().u32().unwrap(), number);
    }
}
