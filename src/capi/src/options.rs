//! Options: what is not left to its default, by name.

use std::ffi::{c_char, c_int};
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use rpcrdma::{
    Authentication, Client, ClientBuilder, ExternalMemory, HostIdentity, Node, NodeBuilder,
    PresharedKey, PresharedKeys, Start,
};
use rpcrdma_tuning::{Profile, Settings, Value};

use crate::border::{Failed, done};
use crate::codes::RPCRDMA_E_CONFIGURATION;
use crate::pointers;

/// What is not left to its default: a list of names and values.
#[derive(Clone, Debug, Default)]
pub struct Options {
    profile: Option<String>,
    knobs: Vec<String>,
    cpus: Vec<usize>,
    cores: Option<usize>,
    device: Option<String>,
    authentication: Method,
    key_file: Option<String>,
    host_name: Option<String>,
    connections: Option<usize>,
    depth: Option<u32>,
    connect_timeout: Option<Duration>,
    timeout: Option<Duration>,
    patience: Option<Duration>,
    spin: Option<Duration>,
    start: Option<Start>,
    return_after: Option<Option<Duration>>,
    does_not_wait: bool,
    repeats: bool,
    is_polled: bool,
    memory: Vec<ExternalMemory>,
}

/// How peers prove who they are.
#[derive(Clone, Copy, Debug, Default)]
enum Method {
    #[default]
    Fabric,
    None,
    Key,
}

fn wrong(name: &str, value: &str, expected: &str) -> Failed {
    let text = format!("the option `{name}` cannot be `{value}`: it is {expected}");
    Failed::new(RPCRDMA_E_CONFIGURATION, text)
}

fn number<T: FromStr>(name: &str, value: &str) -> Result<T, Failed> {
    let value = value.trim();
    value
        .parse()
        .map_err(|_| wrong(name, value, "a whole number"))
}

/// A number of things of which there must be one.
fn count<T: FromStr + PartialOrd + From<u8>>(name: &str, value: &str) -> Result<T, Failed> {
    let count = number(name, value)?;
    match count >= T::from(1) {
        true => Ok(count),
        false => Err(wrong(name, value, "1 or more")),
    }
}

fn yes_or_no(name: &str, value: &str) -> Result<bool, Failed> {
    match value {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err(wrong(name, value, "`yes` or `no`")),
    }
}

/// Checks what the knob alone decides, so that the mistake is reported where it is made. The relations between knobs are
/// looked at when a node starts.
fn check_knob(knob: &str, value: &str, assignment: &str) -> Result<(), Failed> {
    let assigned = Settings::default().assign(assignment);
    let Some(info) = Profile::KNOBS.iter().find(|info| info.name == knob) else {
        let no_such = |error| format!("no such option: {error}");
        return assigned.map_err(|error| Failed::new(RPCRDMA_E_CONFIGURATION, no_such(error)));
    };
    let number = value.trim().parse().map(Value::Number);
    if assigned.is_err() || number.is_ok_and(|number| !info.values.contain(number)) {
        return Err(wrong(knob, value, &info.values.to_string()));
    }
    Ok(())
}

impl Options {
    fn set(&mut self, name: &str, value: &str) -> Result<(), Failed> {
        let text = || Some(value.to_owned());
        match name {
            "profile" => self.profile = text(),
            "cpus" => {
                let cpus = value.split(',').map(|cpu| number(name, cpu));
                self.cpus = cpus.collect::<Result<_, _>>()?;
            }
            "cores" => self.cores = Some(count(name, value)?),
            "device" => self.device = text(),
            "authentication" => {
                self.authentication = match value {
                    "fabric" => Method::Fabric,
                    "none" => Method::None,
                    "key" => Method::Key,
                    _ => return Err(wrong(name, value, "`fabric`, `none` or `key`")),
                }
            }
            "key_file" => self.key_file = text(),
            "host_name" => self.host_name = text(),
            "connections" => self.connections = Some(count(name, value)?),
            "depth" => self.depth = Some(count(name, value)?),
            "connect_timeout_ms" => {
                self.connect_timeout = Some(Duration::from_millis(number(name, value)?));
            }
            "timeout_ms" => self.timeout = Some(Duration::from_millis(number(name, value)?)),
            "patience_ms" => self.patience = Some(Duration::from_millis(number(name, value)?)),
            "spin_us" => self.spin = Some(Duration::from_micros(number(name, value)?)),
            "start" => {
                self.start = Some(match value {
                    "spread" => Start::Spread,
                    "standby" => Start::Standby,
                    _ => return Err(wrong(name, value, "`spread` or `standby`")),
                });
            }
            "return_after_ms" => {
                self.return_after = Some(match value {
                    "never" => None,
                    _ => Some(Duration::from_millis(number(name, value)?)),
                });
            }
            "wait" => self.does_not_wait = !yes_or_no(name, value)?,
            "repeat" => self.repeats = yes_or_no(name, value)?,
            "polled" => self.is_polled = yes_or_no(name, value)?,
            knob => {
                let assignment = format!("{knob}={value}");
                check_knob(knob, value, &assignment)?;
                self.knobs.push(assignment);
            }
        }
        Ok(())
    }

    pub(crate) fn authentication(&self) -> Result<Authentication, Failed> {
        let bad = |text: String| Failed::new(RPCRDMA_E_CONFIGURATION, text);
        Ok(match self.authentication {
            Method::Fabric => Authentication::Fabric,
            Method::None => Authentication::None,
            Method::Key => {
                let (Some(file), Some(name)) = (&self.key_file, &self.host_name) else {
                    return Err(bad(
                        "the authentication `key` needs the options `key_file` and `host_name`"
                            .to_owned(),
                    ));
                };
                let identity = HostIdentity::new(name).map_err(|error| bad(error.to_string()))?;
                let keys = PresharedKeys::read(Path::new(file));
                let keys = keys.map_err(|error| bad(error.to_string()))?;
                Authentication::Required(Arc::new(PresharedKey::new(identity, keys)))
            }
        })
    }

    pub(crate) fn add_memory(&mut self, memory: &ExternalMemory) {
        self.memory.push(memory.clone());
    }

    /// What a node is made of.
    pub(crate) fn node(&self) -> Result<NodeBuilder, Failed> {
        let mut builder = Node::builder();
        if let Some(profile) = &self.profile {
            builder = builder.profile_named(profile);
        }
        for knob in &self.knobs {
            builder = builder.knob(knob);
        }
        if let Some(cores) = self.cores {
            builder = builder.cores(cores);
        }
        if !self.cpus.is_empty() {
            builder = builder.pinned(self.cpus.iter().copied());
        }
        if let Some(device) = &self.device {
            builder = builder.device(device);
        }
        if self.is_polled {
            builder = builder.polled_by_caller();
        }
        for memory in &self.memory {
            builder = builder.memory(memory);
        }
        Ok(builder.authentication(self.authentication()?))
    }

    /// What a client's own node is made of.
    pub(crate) fn own_node(&self) -> Result<NodeBuilder, Failed> {
        if self.is_polled {
            let text = "nobody could poll the cores of a client's own node: start a node, and connect on it";
            return Err(Failed::new(RPCRDMA_E_CONFIGURATION, text));
        }
        self.node()
    }

    /// How a client of a node calls.
    fn client(&self, mut client: ClientBuilder) -> Result<ClientBuilder, Failed> {
        if let Some(connections) = self.connections {
            client = client.connections(connections);
        }
        if let Some(depth) = self.depth {
            client = client.depth(depth);
        }
        if let Some(timeout) = self.connect_timeout {
            client = client.connect_timeout(timeout);
        }
        if let Some(timeout) = self.timeout {
            client = client.timeout(timeout);
        }
        if let Some(patience) = self.patience {
            client = client.patience(patience);
        }
        if let Some(spin) = self.spin {
            client = client.spin(spin);
        }
        if let Some(start) = self.start {
            client = client.start(start);
        }
        if let Some(after) = self.return_after {
            client = client.return_after(after);
        }
        let client = client.repeat(self.repeats);
        Ok(client.authentication(self.authentication()?))
    }

    pub(crate) fn connect(&self, node: &Node, address: &str) -> Result<Client, Failed> {
        let client = self.client(node.client())?;
        let client = match self.does_not_wait {
            true => client.connect_later(address),
            false => client.connect(address),
        };
        Ok(client?)
    }
}

/// The options of C; the defaults for NULL.
///
/// # Safety
/// As [`pointers::shared`].
pub(crate) unsafe fn of<'a>(options: *const Options) -> std::borrow::Cow<'a, Options> {
    // SAFETY: the caller's promise.
    match unsafe { pointers::shared(options, "options") } {
        Ok(options) => std::borrow::Cow::Borrowed(options),
        Err(_) => std::borrow::Cow::Owned(Options::default()),
    }
}

/// Makes options, all at their defaults. Never NULL. End them with rpcrdma_options_free(); what was made with them needs
/// them no more. Where a function takes options, NULL stands for the defaults.
#[unsafe(no_mangle)]
pub extern "C" fn rpcrdma_options_new() -> *mut Options {
    Box::into_raw(Box::default())
}

/// Sets an option. Both texts are copied.
///
/// Of a node, and so of a server, and of a client that has its own node:
/// - "profile": a profile of that name, or of a file whose path ends in ".toml" (docs/tuning.md).
/// - the name of any knob of a profile, such as "idle" ("spin", "pause", "park") or "bulk_buffers": its value. docs/c.md has
///   the defaults that differ from those of docs/tuning.md.
/// - "cpus": processors, such as "2,4": one core for each, pinned to it.
/// - "cores": so many cores, which the scheduler places (default: 1).
/// - "device": the RDMA devices by name, with commas between them, or "all" (default: those of the addresses).
/// - "polled": "yes" for cores that threads of the program poll (default: "no"): rpcrdma_node_take_core(). Not for a client's own node.
///
/// Of listeners and of clients:
/// - "authentication": who the other end must be. "fabric" (default): what the fabric admits, which is enough on shm:
///   alone; "none": anybody; "key": who proves a key of "key_file" (docs/security.md), as this end does by its "host_name".
///
/// Of clients:
/// - "connections": as many connections, on the cores in turn (default: 1).
/// - "depth": calls under way on each connection (default: 64). A poller has its own.
/// - "connect_timeout_ms": the time to connect (default: 5000).
/// - "timeout_ms": the time that rpcrdma_call_run() waits (default: call_timeout_ms of the profile).
/// - "patience_ms": the time that a call waits for a lost connection before it is sent (default: as above).
/// - "spin_us": the time that a thread looks for its reply before it sleeps (default: 50).
/// - "repeat": "yes" to send calls again that were lost with their connection (default: "no"): they fail with
///   RPCRDMA_E_DISCONNECTED only where that cannot be. Each procedure called must do no harm when it runs twice, or be one
///   of `once` of its service (docs/c.md).
/// - "start": of several addresses, "spread" to have the first connection at the first, the second at the second, and so on (default),
///   or "standby" to have all at the first.
/// - "return_after_ms": how long a connection stays at another address before it goes back to its own (default: 2000), or "never".
/// - "wait": "no" to return before the connection is there (default: "yes"). Calls wait for it then.
///
/// Errors: RPCRDMA_E_CONFIGURATION for an unknown name, and for a value that the option cannot have. What depends on the machine or
/// on other options is found when a node or a client is made with them: a profile that is not there, a device, a processor,
/// the key and its file, more than the machine has, and knobs that do not go together.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_options_set(
    options: *mut Options,
    name: *const c_char,
    value: *const c_char,
) -> c_int {
    done(|| {
        // SAFETY: the contract of the header.
        let (options, name, value) = unsafe {
            (
                pointers::exclusive(options, "options")?,
                pointers::text(name, "name")?,
                pointers::text(value, "value")?,
            )
        };
        options.set(name, value)
    })
}

/// Ends options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_options_free(options: *mut Options) {
    done(|| {
        // SAFETY: the contract of the header.
        drop(unsafe { pointers::take(options) });
        Ok(())
    });
}
