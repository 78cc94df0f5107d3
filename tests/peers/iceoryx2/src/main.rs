//! Round trips over iceoryx2 between two processes: `pubsub` by two publish-subscribe services, `request` by one
//! request-response service.

use core::hint::spin_loop;

use iceoryx2::port::{publisher::Publisher, subscriber::Subscriber};
use iceoryx2::prelude::*;
use iceoryx2::service::port_factory::{publish_subscribe, request_response};
use peer_common::{Failure, Message, Pong, STOP, Side, measure, pin, ready, side};

/// A node with one thread in each process: the variant without locks.
type Local = Node<ipc::Service>;

fn topic(
    node: &Local,
    name: &str,
) -> Result<publish_subscribe::PortFactory<ipc::Service, Message, ()>, Failure> {
    Ok(node
        .service_builder(&name.try_into()?)
        .publish_subscribe::<Message>()
        .max_publishers(1)
        .max_subscribers(1)
        .history_size(0)
        .subscriber_max_buffer_size(1)
        .enable_safe_overflow(true)
        .open_or_create()?)
}

fn receive(subscriber: &Subscriber<ipc::Service, Message, ()>) -> Result<Message, Failure> {
    loop {
        if let Some(sample) = subscriber.receive()? {
            return Ok(*sample);
        }
        spin_loop();
    }
}

fn publish(
    publisher: &Publisher<ipc::Service, Message, ()>,
    message: Message,
) -> Result<(), Failure> {
    publisher.loan_uninit()?.write_payload(message).send()?;
    Ok(())
}

fn pubsub(node: &Local) -> Result<(), Failure> {
    match side(1)? {
        Side::Ping(options) => {
            let name = format!("rpcrdma-peers-{}", std::process::id());
            let (there, back) = (
                topic(node, &format!("{name}-there"))?,
                topic(node, &format!("{name}-back"))?,
            );
            let publisher = there.publisher_builder().create()?;
            let subscriber = back.subscriber_builder().create()?;
            let pong = Pong::start(&["pubsub"], options.pong, &name)?;
            pin(options.ping)?;
            measure(&options, |message| {
                publish(&publisher, *message)?;
                receive(&subscriber)
            })?;
            publish(&publisher, STOP)?;
            pong.finish()
        }
        Side::Pong { core, name } => {
            let (there, back) = (
                topic(node, &format!("{name}-there"))?,
                topic(node, &format!("{name}-back"))?,
            );
            let subscriber = there.subscriber_builder().create()?;
            let publisher = back.publisher_builder().create()?;
            pin(core)?;
            ready("ready");
            loop {
                let message = receive(&subscriber)?;
                if message == STOP {
                    return Ok(());
                }
                publish(&publisher, message)?;
            }
        }
    }
}

type Requests = request_response::PortFactory<ipc::Service, Message, (), Message, ()>;

fn requests(node: &Local, name: &str) -> Result<Requests, Failure> {
    Ok(node
        .service_builder(&name.try_into()?)
        .request_response::<Message, Message>()
        .max_clients(1)
        .max_servers(1)
        .max_active_requests_per_client(1)
        .max_response_buffer_size(1)
        .open_or_create()?)
}

fn request(node: &Local) -> Result<(), Failure> {
    match side(1)? {
        Side::Ping(options) => {
            let name = format!("rpcrdma-peers-{}", std::process::id());
            let service = requests(node, &name)?;
            let client = service.client_builder().create()?;
            let pong = Pong::start(&["request"], options.pong, &name)?;
            pin(options.ping)?;
            measure(&options, |message| {
                let pending = client.loan_uninit()?.write_payload(*message).send()?;
                loop {
                    if let Some(response) = pending.receive()? {
                        return Ok(*response);
                    }
                    spin_loop();
                }
            })?;
            let _pending = client.loan_uninit()?.write_payload(STOP).send()?;
            pong.finish()
        }
        Side::Pong { core, name } => {
            let service = requests(node, &name)?;
            let server = service.server_builder().create()?;
            pin(core)?;
            ready("ready");
            loop {
                let Some(active) = server.receive()? else {
                    spin_loop();
                    continue;
                };
                if *active == STOP {
                    return Ok(());
                }
                active.loan_uninit()?.write_payload(*active).send()?;
            }
        }
    }
}

fn main() -> Result<(), Failure> {
    set_log_level(LogLevel::Error);
    let node = NodeBuilder::new().create::<ipc::Service>()?;
    match std::env::args().nth(1).as_deref() {
        Some("pubsub") => pubsub(&node),
        Some("request") => request(&node),
        _ => Err("usage: pubsub|request CORE_PING CORE_PONG WARM_UP_MS MEASURE_MS".into()),
    }
}
