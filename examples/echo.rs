//! The smallest server and client: `cargo run --example echo`, or each by itself with `-- serve ADDRESS` and
//! `-- call ADDRESS TEXT`, where ADDRESS is shm:NAME or rdma:HOST:PORT.

use rpcrdma::Authentication;
use rpcrdma::prelude::*;

const ECHO: Procedure = Procedure::new(0x2000_0001, 1, 1);

fn serve(address: &str) -> rpcrdma::Result<Server> {
    Server::builder()
        // Any client that reaches the RDMA device; docs/security.md has how clients prove a key.
        .authentication(Authentication::None)
        .procedure(ECHO, |call, reply| {
            reply.opaque(call.args().opaque()?);
            Ok(())
        })
        .listen(address)
}

fn call(address: &str, text: &str) -> rpcrdma::Result<()> {
    let client = Client::connect(address)?;
    let mut answer = client.request(ECHO).opaque(text.as_bytes()).call()?;
    println!("{}", answer.results().string()?);
    Ok(())
}

fn main() -> rpcrdma::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", address] => {
            let server = serve(address)?;
            println!("listening on {}", server.address());
            loop {
                std::thread::park();
            }
        }
        ["call", address, text] => call(address, text),
        _ => {
            let _server = serve("shm:echo")?;
            call("shm:echo", "hello")
        }
    }
}
