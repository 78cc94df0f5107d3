//! The responder.

use std::io::Write;
use std::path::Path;

use rpcrdma_control::{Authentication, ListenOptions, Node, NodeConfig, Provider};
use rpcrdma_engine::{Application, Outcome, ReplyWriter, Request};

use crate::book::{Book, Name};
use crate::{APPEND, Failure};

struct Responder {
    book: Book,
}

impl Application for Responder {
    fn call(&mut self, request: &Request<'_>, reply: &mut ReplyWriter<'_>) -> Outcome {
        if request.program != APPEND.program {
            return Outcome::ProgramUnavailable;
        }
        if request.procedure != APPEND.procedure {
            return Outcome::ProcedureUnavailable;
        }
        let Some(name) = Name::from_xdr(request.args) else {
            return Outcome::GarbageArgs;
        };
        match self.book.append(name) {
            Ok(position) if reply.write(&position.to_be_bytes()).is_ok() => Outcome::Success,
            _ => Outcome::SystemError,
        }
    }
}

/// Serves until the process is killed.
pub(crate) fn run<V: Provider>(
    provider: V,
    config: &NodeConfig,
    address: &str,
    book: &Path,
) -> Result<(), Failure> {
    let book = Book::open(book)?;
    let entries = book.entries();
    let mut book = Some(book);
    let node = Node::start(provider, config, |_| Responder {
        book: book.take().expect("the node has one core"),
    })
    .map_err(told)?;
    // What the ledger is about is what becomes of calls, not who makes them.
    let open_to_all = ListenOptions {
        authentication: Authentication::None,
        ..ListenOptions::default()
    };
    let listening = node.listen(address, open_to_all).map_err(told)?;
    println!(
        "listening on {}, behind {entries} entries",
        listening.address
    );
    std::io::stdout().flush()?;
    loop {
        std::thread::park();
    }
}

/// An error with its causes, in one line.
pub(crate) fn told(error: impl std::error::Error) -> Failure {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text.into()
}
