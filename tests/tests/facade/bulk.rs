//! Data in registered memory.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rpcrdma::prelude::*;
use rpcrdma::{ClientBuilder, Idle, NodeBuilder, Profile};
use rpcrdma_testkit::pattern;

use crate::{PATIENCE, PROGRAM, UNHURRIED, address, connect, profile, unhurried};

/// Keeps the data.
const PUT: Procedure = Procedure::new(PROGRAM, 1, 10);
/// Sends it back.
const GET: Procedure = Procedure::new(PROGRAM, 1, 11);

/// How an opaque of the arguments came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Stream,
    Memory,
}

fn store(at: &str) -> (Server, Arc<Mutex<Vec<Way>>>) {
    let kept = Arc::new(Mutex::new(Vec::new()));
    let ways = Arc::new(Mutex::new(Vec::new()));
    let (put, way) = (Arc::clone(&kept), Arc::clone(&ways));
    let server = Server::builder().profile(profile());
    let server = server.procedure(PUT, move |call, reply| {
        let before = call.args().u32()?;
        let data = call.args().bulk()?;
        let after = call.args().u32()?;
        *put.lock().unwrap() = data.to_vec();
        let came = data.take().map_or(Way::Stream, |_memory| Way::Memory);
        way.lock().unwrap().push(came);
        reply.u32(before).u32(after);
        Ok(())
    });
    let server = server.procedure(GET, move |_, reply| {
        let kept = kept.lock().unwrap();
        let mut buffer = reply.buffer_for(kept.len()).ok_or(Refusal::SystemError)?;
        buffer.copy_from(&kept);
        reply.u32(1).bulk(buffer).u32(2);
        Ok(())
    });
    (server.listen(at).unwrap(), ways)
}

#[test]
fn data_of_every_length_goes_both_ways() {
    let at = address();
    let (server, ways) = store(&at);
    let client = connect(&at);
    for bytes in [0, 1, 3, 4, 100, 4096, 4099, 65_536, 65_537, 500_000] {
        let data = pattern(bytes, 7);
        let buffer = client.buffers().wait(bytes, PATIENCE).unwrap();
        let mut buffer = buffer;
        assert_eq!(buffer.copy_from(&data), bytes);
        let mut answer = client
            .request(PUT)
            .u32(3)
            .bulk(buffer)
            .u32(4)
            .call()
            .unwrap();
        let mut results = answer.results();
        assert_eq!((results.u32().unwrap(), results.u32().unwrap()), (3, 4));

        let mut request = client.request(GET);
        let mut answer = request.expect_bulk(1 << 20).call().unwrap();
        let mut results = answer.results();
        assert_eq!(results.u32().unwrap(), 1);
        let got = results.bulk().unwrap();
        assert_eq!(got.len(), bytes);
        assert!(got.to_vec() == data, "{bytes} bytes came back wrong");
        assert_eq!(results.u32().unwrap(), 2);
        // By a client that has no room beside the stream.
        if bytes < 100_000 {
            let mut answer = client.request(GET).call().unwrap();
            let mut results = answer.results();
            results.u32().unwrap();
            assert!(
                results.bulk().unwrap().to_vec() == data,
                "{bytes} bytes in the stream"
            );
            assert_eq!(results.u32().unwrap(), 2);
        }
    }
    let ways = ways.lock().unwrap();
    assert_eq!(ways.first(), Some(&Way::Stream), "nothing needs no memory");
    assert_eq!(ways.last(), Some(&Way::Memory));
    assert!(server.metrics().total("bulk_bytes_in") > Some(0));
}

#[test]
fn a_result_in_memory_can_be_kept_and_sent_on() {
    let at = address();
    let (_server, ways) = store(&at);
    let client = connect(&at);
    let data = pattern(100_000, 7);
    let mut buffer = client.buffers().wait(data.len(), PATIENCE).unwrap();
    buffer.copy_from(&data);
    client
        .request(PUT)
        .u32(0)
        .bulk(buffer)
        .u32(0)
        .call()
        .unwrap();
    let mut answer = client.request(GET).expect_bulk(1 << 20).call().unwrap();
    let mut results = answer.results();
    results.u32().unwrap();
    let got = results.bulk().unwrap().take().expect("it came in memory");
    drop(answer);
    // As it is, to the server again: no copy on the way.
    client.request(PUT).u32(0).bulk(got).u32(0).call().unwrap();
    let copied = client.node().metrics().total("bulk_bytes_copied");
    assert_eq!(copied, Some(0));
    assert_eq!(*ways.lock().unwrap(), [Way::Memory, Way::Memory]);
}

#[test]
fn memory_that_is_kept_is_missed_and_comes_back() {
    let at = address();
    let (_server, _) = store(&at);
    let client = connect(&at);
    let buffers = client.buffers();
    let most = buffers.bytes_max();
    assert_eq!(most, 16 * 65_536, "half of the node's memory");
    // So many can be had, however late the core brings them.
    let mut kept: Vec<_> = (0..16)
        .map(|_| buffers.wait(1, PATIENCE).unwrap())
        .collect();
    // TIME: where it is too short for the core, fewer pieces are kept, and no more than there may be.
    let error = loop {
        match buffers.wait(1, Duration::from_millis(100)) {
            Ok(buffer) => kept.push(buffer),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::NoBuffers);
    assert!(kept.len() <= 32, "{} pieces", kept.len());
    drop(kept);
    drop(buffers.wait(most, PATIENCE).unwrap());
    let error = buffers.wait(most + 1, PATIENCE).unwrap_err();
    assert_eq!(
        error.kind(),
        ErrorKind::NoBuffers,
        "at once: there is never so much"
    );
}

#[test]
fn calls_that_wait_for_a_connection_keep_no_memory_from_others() {
    let (at, elsewhere) = (address(), address());
    let (_server, _) = store(&at);
    let (gone, _) = store(&elsewhere);
    let node = Node::builder().profile(profile()).start(&at).unwrap();
    let client = node
        .client()
        .connect_timeout(PATIENCE)
        .connect(&at)
        .unwrap();
    let waiting = node
        .client()
        .connect_timeout(PATIENCE)
        .connect(&elsewhere)
        .unwrap();
    drop(gone);
    let mut poller = waiting.poller(4).unwrap();
    while !poller.is_full() {
        poller.submit(&mut poller.request(GET), 0).unwrap();
    }
    for _ in 0..40 {
        let buffer = client.buffers().wait(65_536, PATIENCE);
        let mut request = client.request(PUT);
        request.u32(0).bulk(buffer.unwrap()).u32(0).call().unwrap();
    }
}

/// A block takes two credits: one for the Send that places it, and one for the message. It goes in another way without.
#[test]
fn blocks_are_placed_where_each_call_has_two_credits() {
    const DEPTH: u32 = 64;
    const CALLS: u64 = 500;
    let placed = |credits: u32, is_put: bool| {
        let at = address();
        let knob = format!("credits_per_connection={credits}");
        let knobs = || UNHURRIED.into_iter().chain([&*knob, "bulk_buffers=128"]);
        let server = knobs().fold(Server::builder(), NodeBuilder::knob);
        // No call is answered before the client has all of them under way, so that credits run short if they can.
        let is_full = Arc::new(AtomicBool::new(false));
        let [put, get] = [(); 2].map(|()| Arc::clone(&is_full));
        let wait_for = |is_full: &AtomicBool| {
            while !is_full.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
        };
        let server = server.procedure(PUT, move |call, _| {
            wait_for(&put);
            Ok(call.args().bulk().map(|_| ())?)
        });
        let server = server.procedure(GET, move |_, reply| {
            wait_for(&get);
            let block = reply.buffer_for(4096).ok_or(Refusal::SystemError)?;
            reply.bulk(block);
            Ok(())
        });
        let server = server.listen(&at).unwrap();
        let client = knobs().fold(Client::builder(), ClientBuilder::knob);
        let client = client.depth(DEPTH).connect_timeout(PATIENCE);
        let client = client.connect(&at).unwrap();
        let mut poller = client.poller(DEPTH).unwrap();
        for number in 0..CALLS {
            while poller.is_full() {
                is_full.store(true, Ordering::Release);
                poller.wait().unwrap().result.unwrap();
            }
            let mut request = poller.request(if is_put { PUT } else { GET });
            if is_put {
                let block = client.buffers().wait(4096, PATIENCE);
                request.bulk(block.unwrap());
            } else {
                request.expect_bulk(4096);
            }
            poller.submit(&mut request, number).unwrap();
        }
        while !poller.is_empty() {
            poller.wait().unwrap().result.unwrap();
        }
        let taker = if is_put { server.node() } else { client.node() };
        taker.metrics().total("bulk_bytes_placed").unwrap()
    };
    for is_put in [true, false] {
        assert!(placed(16, is_put) < CALLS * 4096);
        assert_eq!(placed(2 * DEPTH, is_put), CALLS * 4096);
    }
}

/// The profile of each family as it is, but for cores that sleep and have time: the tests share processors.
#[test]
fn the_profile_of_every_family_places_a_block_by_its_send_as_far_as_the_device_can() {
    let names = rpcrdma_tuning::list().into_iter();
    let names = names.filter(|family| family.refused.is_none());
    let mut places = 0;
    for name in names.map(|family| family.name) {
        let loaded = rpcrdma_tuning::Layers::named(name).and_then(rpcrdma_tuning::Layers::build);
        let profile = unhurried(Profile {
            idle: Idle::Park,
            ..loaded.unwrap().profile
        });
        let can_place = profile.receive_scatter_entries_max > 1;
        assert_eq!(profile.placement_segments, u32::from(can_place), "{name}");
        let blocks = Arc::new(Mutex::new(Vec::new()));
        let put = Arc::clone(&blocks);
        let server = Server::builder().profile(profile.clone());
        let server = server.procedure(PUT, move |call, _| {
            let block = call.args().bulk()?;
            let bytes = block.to_vec();
            let is_in_memory = block.take().is_ok();
            put.lock().unwrap().push((bytes, is_in_memory));
            Ok(())
        });
        let server = server.listen(&address()).unwrap();
        let client = Client::builder().profile(profile).connect_timeout(PATIENCE);
        let client = client.connect(server.address()).unwrap();
        let data = pattern(4096, 7);
        let mut buffer = client.buffers().wait(data.len(), PATIENCE).unwrap();
        buffer.copy_from(&data);
        client.request(PUT).bulk(buffer).call().unwrap();
        assert_eq!(*blocks.lock().unwrap(), [(data, true)], "{name}");
        let metrics = server.metrics();
        let placed = metrics.total("transmissions_received") > Some(0);
        assert_eq!(placed, can_place, "{name}");
        // Without a place for it the block is fetched.
        let fetched = metrics.total("rdma_reads") > Some(0);
        assert_eq!(fetched, !can_place, "{name}");
        places += u32::from(placed);
    }
    assert!(places >= 12, "{places} families");
}

#[test]
fn a_reader_goes_on_where_another_one_came_to() {
    const BOTH: Procedure = Procedure::new(PROGRAM, 1, 12);
    let at = address();
    let (first, second) = (pattern(20_000, 1), pattern(30_000, 2));
    let server = {
        let (first, second) = (first.clone(), second.clone());
        let server = Server::builder().profile(profile());
        server.procedure(BOTH, move |_, reply| {
            reply.u32(7).bulk_copy(&first).bulk_copy(&second).u32(8);
            Ok(())
        })
    };
    let _server = server.listen(&at).unwrap();
    let client = connect(&at);
    let mut request = client.request(BOTH);
    request.expect_bulk(20_000).expect_bulk(30_000);
    let mut answer = request.call().unwrap();
    assert_eq!(answer.results().u32(), Ok(7));
    assert!(answer.results().bulk().unwrap().to_vec() == first);
    // Taken away: those behind it keep their places.
    assert!(answer.results().bulk().unwrap().take().unwrap().to_vec() == second);
    assert_eq!(answer.results().u32(), Ok(8));
    assert_eq!(answer.results().rest(), b"");
    assert!(answer.results().u32().is_err(), "all was read");
    let mut again = answer.results_from_start();
    assert_eq!(again.u32(), Ok(7));
    assert!(again.bulk().unwrap().to_vec() == first);
    assert!(
        answer.results_from_start().bulk().is_err(),
        "the first is a word"
    );
    let mut again = answer.results_from_start();
    assert_eq!(again.u32(), Ok(7));
    let taken = again
        .bulk()
        .unwrap()
        .take()
        .expect("it came outside the stream");
    let mut again = answer.results_from_start();
    assert_eq!(again.u32(), Ok(7));
    assert!(again.bulk().is_err(), "it was taken");
    drop(taken);
}
