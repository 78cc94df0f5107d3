//! Round trips of ruapc between two processes, over TCP on the loopback interface.
//!
//! ruapc runs on tokio and waits for its sockets in the kernel: it has no setting for polling.

#![expect(
    clippy::ptr_arg,
    reason = "the macro of ruapc takes references to owned types only"
)]

use std::sync::Arc;

use peer_common::{Failure, Message, Pong, Side, measure, pin, ready, side, to_bytes};
use ruapc::{Client, Context, Endpoint, Router, Server, SocketPoolConfig};

#[ruapc::service]
trait EchoService {
    async fn echo(&self, context: &Context, text: &String) -> ruapc::Result<String>;
}

struct Echo;

impl EchoService for Echo {
    async fn echo(&self, _context: &Context, text: &String) -> ruapc::Result<String> {
        Ok(text.clone())
    }
}

/// The message as text of as many bytes.
fn text(message: &Message) -> Result<String, Failure> {
    let bytes = to_bytes(message).map(|byte| byte & 0x7f);
    Ok(String::from_utf8(bytes.to_vec())?)
}

fn main() -> Result<(), Failure> {
    // One thread at each end: faster here than several.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let config = SocketPoolConfig::default();
    match side(0)? {
        Side::Ping(options) => {
            let pong = Pong::start(&[], options.pong, "loopback")?;
            pin(options.ping)?;
            let address: std::net::SocketAddr = pong.ready.parse()?;
            runtime
                .block_on(async {
                    let context =
                        Context::create(&config)?.with_endpoint(Endpoint::tcp([address])?);
                    let client = Client::default();
                    Ok::<_, Failure>((context, client))
                })
                .and_then(|(context, client)| {
                    measure(&options, |message| {
                        let sent = text(message)?;
                        let received = runtime.block_on(client.echo(&context, &sent))?;
                        if received == sent {
                            Ok(*message)
                        } else {
                            Err("the payload did not come back as it was sent".into())
                        }
                    })
                })
        }
        Side::Pong { core, name: _ } => {
            pin(core)?;
            runtime.block_on(async {
                let mut router = Router::default();
                EchoService::ruapc_export(Arc::new(Echo), &mut router);
                let server = Server::create(router, &config)?;
                let address = server.listen("127.0.0.1:0".parse()?).await?;
                ready(&address.to_string());
                // Until the process that measures ends this one.
                server.join().await;
                Ok(())
            })
        }
    }
}
