//! Ends of which one has no registered memory.

use rpcrdma::ClientBuilder;
use rpcrdma::prelude::*;
use rpcrdma_testkit::pattern;

use crate::{PATIENCE, PROGRAM, UNHURRIED, address};

/// Answers with the length of its opaque.
const PUT: Procedure = Procedure::new(PROGRAM, 1, 20);

#[test]
fn data_for_a_server_without_registered_memory_goes_in_the_stream_from_the_first_call() {
    let at = address();
    let profile = rpcrdma::Profile {
        bulk_buffers: 0,
        ..crate::profile()
    };
    let server = Server::builder()
        .profile(profile)
        .procedure(PUT, |call, reply| {
            let data = call.args().bulk()?;
            let is_right = data.to_vec() == pattern(4096, 7);
            reply.bool(is_right).bool(data.take().is_ok());
            Ok(())
        });
    let _server = server.listen(&at).unwrap();
    let client = Client::builder().connect_timeout(PATIENCE);
    let client = UNHURRIED.into_iter().fold(client, ClientBuilder::knob);
    let client = client.connect(&at).unwrap();
    for _ in 0..3 {
        let mut buffer = client.buffers().wait(4096, PATIENCE).unwrap();
        buffer.copy_from(&pattern(4096, 7));
        let mut answer = client.request(PUT).bulk(buffer).call().unwrap();
        let mut results = answer.results();
        assert_eq!((results.bool(), results.bool()), (Ok(true), Ok(false)));
    }
}
