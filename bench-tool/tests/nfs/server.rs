//! A small NFS server over TCP, MOUNT on the same port, that can be wrong in ways that the real ones are not on
//! demand.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use rpcrdma::record::{HEADER_BYTES, Records, header};
use rpcrdma_nfs3::wire::types::{Attributes, Device, FileKind, Place, Stability, Time, Wcc};
use rpcrdma_nfs3::wire::xdr::{Decode, Encode};
use rpcrdma_nfs3::wire::{FileHandle, Procedure, Status, arguments, mount, results};
use rpcrdma_protocol::rpc::{AcceptStatus, CallHeader, ReplyHeader};
use rpcrdma_protocol::xdr::{Reader, Writer};

/// What is wrong with a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// What is read is one bit off, now and then.
    Content,
    /// GETATTR finds a file gone, now and then.
    Stale,
    /// A word follows the results of GETATTR.
    Trailing,
    /// The results of READ end too early, now and then.
    Truncated,
    /// WRITE promises nothing, whatever was asked for.
    LessStable,
    NotExported,
    ReadOnly,
    NoSpace,
    /// READ and WRITE do half of what they are asked for.
    Short,
    /// The connection of WRITEs is closed now and then.
    Cut,
    /// From the fiftieth WRITE on, all connections are closed, new ones immediately.
    Closing,
    /// The write verifier changes once.
    Verifier,
    /// Calls are put off now and then.
    Busy,
    /// All READs and WRITEs are put off.
    Stuck,
    /// The first call of each procedure is done, and its reply lost with the connection.
    Fickle,
    /// The program MOUNT is not there.
    NoMount,
    /// Before each reply the server calls, and replies to a call that nobody made.
    Talkative,
    /// A reply has a status that no RFC defines, now and then.
    Unknown,
}

/// The number of the root; files count from there.
const ROOT: u64 = 1;

#[derive(Debug, Default)]
struct Store {
    /// Content by number; `None` is a folder.
    files: BTreeMap<u64, Option<Vec<u8>>>,
    names: BTreeMap<(u64, Vec<u8>), u64>,
    last: u64,
}

#[derive(Debug)]
struct Shared {
    fault: Fault,
    store: Mutex<Store>,
    /// Calls so far that could have been answered wrongly.
    calls: AtomicU64,
    writes: AtomicU64,
    /// Calls of MOUNT.
    mounts: AtomicU64,
    /// Connections that were closed immediately.
    closed: AtomicU64,
    /// Procedures that were called.
    called: Mutex<BTreeSet<u32>>,
    /// XIDs of the calls at which a connection was cut or that were put off, and whether each came again.
    failed: Mutex<Vec<(u32, bool)>>,
}

/// A server that listens, for as long as the test runs.
#[derive(Debug)]
pub(crate) struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl Server {
    pub(crate) fn start(fault: Fault) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut store = Store {
            last: ROOT,
            ..Store::default()
        };
        store.files.insert(ROOT, None);
        let shared = Arc::new(Shared {
            fault,
            store: Mutex::new(store),
            calls: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            mounts: AtomicU64::new(0),
            closed: AtomicU64::new(0),
            called: Mutex::default(),
            failed: Mutex::default(),
        });
        let server = Self {
            address,
            shared: Arc::clone(&shared),
        };
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || shared.serve(stream));
            }
        });
        server
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    pub(crate) fn address(&self) -> String {
        format!("tcp:{}", self.address)
    }

    /// Names that are there, in any folder.
    pub(crate) fn names(&self) -> Vec<String> {
        let store = self.shared.store.lock().unwrap();
        let names = store.names.keys();
        names
            .map(|(_, name)| String::from_utf8_lossy(name).into_owned())
            .collect()
    }

    /// The XIDs of the calls at which a connection was cut or that were put off, and whether each came again.
    pub(crate) fn failed(&self) -> Vec<(u32, bool)> {
        self.shared.failed.lock().unwrap().clone()
    }

    /// Calls of MOUNT so far.
    pub(crate) fn mounts(&self) -> u64 {
        self.shared.mounts.load(Ordering::Relaxed)
    }

    pub(crate) fn closed(&self) -> u64 {
        self.shared.closed.load(Ordering::Relaxed)
    }

    pub(crate) fn writes(&self) -> u64 {
        self.shared.writes.load(Ordering::Relaxed)
    }
}

fn handle(number: u64) -> FileHandle {
    FileHandle::new(&number.to_be_bytes()).unwrap()
}

fn number(handle: FileHandle) -> u64 {
    u64::from_be_bytes(handle.as_bytes().try_into().unwrap())
}

fn attributes(number: u64, content: Option<&[u8]>) -> Attributes {
    let (kind, size_bytes) = match content {
        Some(content) => (FileKind::Regular, content.len() as u64),
        None => (FileKind::Directory, 4096),
    };
    Attributes {
        kind,
        mode: 0o644,
        links: 1,
        uid: 0,
        gid: 0,
        size_bytes,
        used_bytes: size_bytes,
        device: Device::default(),
        file_system: 7,
        file_number: number,
        accessed: Time::default(),
        modified: Time::default(),
        changed: Time::default(),
    }
}

impl Shared {
    fn serve(&self, mut stream: TcpStream) {
        let mut records = Records::new(2 << 20);
        loop {
            if self.is_closing() {
                self.closed.fetch_add(1, Ordering::Relaxed);
                return;
            }
            while let Some(message) = records.next_message().unwrap() {
                let (call, bytes) = CallHeader::decode(message).unwrap();
                for (xid, came_again) in self.failed.lock().unwrap().iter_mut() {
                    *came_again |= *xid == call.xid;
                }
                let mut reply = vec![0; (1 << 20) + 4096];
                let is_mount = call.program == mount::PROGRAM;
                let status = if is_mount && self.fault == Fault::NoMount {
                    AcceptStatus::ProgUnavail
                } else {
                    AcceptStatus::Success
                };
                let head = HEADER_BYTES
                    + ReplyHeader::accepted(call.xid, status)
                        .encode(&mut reply[HEADER_BYTES..])
                        .unwrap();
                let mut args = Reader::new(&message[bytes..]);
                let mut writer = Writer::new(&mut reply[head..]);
                if status != AcceptStatus::Success {
                    // No results.
                } else if is_mount {
                    self.mount(call.procedure, &mut writer);
                } else if let Some(words) = self.put_off(call.procedure) {
                    self.failed.lock().unwrap().push((call.xid, false));
                    Status::Jukebox.encode(&mut writer).unwrap();
                    // No attributes.
                    (0..words).for_each(|_| writer.write_u32(0).unwrap());
                } else if self.nfs(call.procedure, &mut args, &mut writer).is_none() {
                    // A connection is cut, with calls in flight.
                    self.failed.lock().unwrap().push((call.xid, false));
                    return;
                }
                let bytes = head + writer.position();
                if self.fault == Fault::Talkative {
                    // A call (message type 0) with the XID of the client's, and a reply to no call.
                    for (xid, kind) in [(call.xid, 0), (call.xid ^ 1 << 31, 1)] {
                        let words: [u32; 6] = [1 << 31 | 20, xid, kind, 2, 9, 9];
                        let message: Vec<u8> =
                            words.into_iter().flat_map(u32::to_be_bytes).collect();
                        if stream.write_all(&message).is_err() {
                            return;
                        }
                    }
                }
                if !is_mount
                    && call.procedure == Procedure::Getattr.number()
                    && self.is_due(Fault::Unknown)
                {
                    // Behind XID, type, reply status, flavor and length of the verifier.
                    reply[HEADER_BYTES + 20..HEADER_BYTES + 24].copy_from_slice(&[0, 0, 0, 9]);
                }
                reply[..HEADER_BYTES].copy_from_slice(&header(bytes - HEADER_BYTES).unwrap());
                if stream.write_all(&reply[..bytes]).is_err() {
                    return;
                }
            }
            match stream.read(records.space()) {
                Ok(0) | Err(_) => return,
                Ok(bytes) => records.filled(bytes),
            }
        }
    }

    fn mount(&self, procedure: u32, out: &mut Writer<'_>) {
        self.mounts.fetch_add(1, Ordering::Relaxed);
        if procedure == mount::MountProcedure::Mnt.number() {
            if self.fault == Fault::NotExported {
                mount::MountStatus::Access.encode(out).unwrap();
                return;
            }
            mount::MountStatus::Ok.encode(out).unwrap();
            handle(ROOT).encode(out).unwrap();
            out.write_u32(1).unwrap();
            out.write_u32(1).unwrap();
        }
    }

    /// If a call is put off, how many words follow the status.
    fn put_off(&self, procedure: u32) -> Option<usize> {
        let procedure = Procedure::from_number(procedure).unwrap();
        let is_bulk = matches!(procedure, Procedure::Read | Procedure::Write);
        let words = match procedure {
            Procedure::Null => return None,
            Procedure::Getattr => 0,
            Procedure::Lookup | Procedure::Read | Procedure::Fsinfo => 1,
            _ => 2,
        };
        let is_put_off = self.is_due(Fault::Busy) || self.fault == Fault::Stuck && is_bulk;
        is_put_off.then_some(words)
    }

    /// `None` cuts the connection.
    fn nfs(&self, procedure: u32, args: &mut Reader<'_>, out: &mut Writer<'_>) -> Option<()> {
        let mut store = self.store.lock().unwrap();
        let procedure = Procedure::from_number(procedure).unwrap();
        match procedure {
            Procedure::Null => {}
            Procedure::Getattr => self.getattr(&store, args, out),
            Procedure::Setattr => {
                let setattr = arguments::Setattr::decode(args).unwrap();
                let content = store.files.get_mut(&number(setattr.object)).unwrap();
                let size = setattr.attributes.size_bytes.unwrap();
                content
                    .as_mut()
                    .unwrap()
                    .resize(usize::try_from(size).unwrap(), 0);
                done(out, &Wcc::default());
            }
            Procedure::Create => {
                let create = arguments::Create::decode(args).unwrap();
                self.make(&mut store, create.place, Some(Vec::new()), out);
            }
            Procedure::Mkdir => {
                let mkdir = arguments::Mkdir::decode(args).unwrap();
                self.make(&mut store, mkdir.place, None, out);
            }
            Procedure::Lookup => {
                let place = Place::decode(args).unwrap();
                let key = (number(place.directory), place.name.to_vec());
                let found = store.names[&key];
                let lookup = results::Lookup {
                    object: handle(found),
                    attributes: None,
                    directory: None,
                };
                done(out, &lookup);
            }
            Procedure::Remove | Procedure::Rmdir => {
                let place = Place::decode(args).unwrap();
                let key = (number(place.directory), place.name.to_vec());
                let Some(file) = store.names.remove(&key) else {
                    assert_eq!(self.fault, Fault::Fickle, "it is there");
                    refused(out, Status::NoEntry);
                    return Some(());
                };
                store.files.remove(&file);
                done(out, &Wcc::default());
            }
            Procedure::Read => self.read(&store, args, out),
            Procedure::Write => return self.write(&mut store, args, out),
            Procedure::Commit => {
                let commit = results::Commit {
                    file: Wcc::default(),
                    verifier: self.verifier(),
                };
                done(out, &commit);
            }
            Procedure::Fsinfo => {
                let info = results::Fsinfo {
                    attributes: None,
                    read_bytes_max: 1 << 20,
                    read_bytes_preferred: 1 << 20,
                    read_bytes_multiple: 1,
                    write_bytes_max: 1 << 20,
                    write_bytes_preferred: 1 << 20,
                    write_bytes_multiple: 1,
                    readdir_bytes_preferred: 4096,
                    file_bytes_max: u64::MAX,
                    time_delta: Time::default(),
                    properties: 0,
                };
                done(out, &info);
            }
            other => panic!("{other:?} was not to be called"),
        }
        let is_first = self.called.lock().unwrap().insert(procedure.number());
        (self.fault != Fault::Fickle || !is_first).then_some(())
    }

    fn is_closing(&self) -> bool {
        self.fault == Fault::Closing && self.writes.load(Ordering::Relaxed) >= 50
    }

    /// Whether it is time for the fault.
    fn is_due(&self, fault: Fault) -> bool {
        self.fault == fault && self.calls.fetch_add(1, Ordering::Relaxed) % 10 == 9
    }

    fn verifier(&self) -> [u8; 8] {
        let changed = self.fault == Fault::Verifier && self.writes.load(Ordering::Relaxed) > 20;
        [u8::from(changed); 8]
    }

    fn getattr(&self, store: &Store, args: &mut Reader<'_>, out: &mut Writer<'_>) {
        let object = number(FileHandle::decode(args).unwrap());
        if self.is_due(Fault::Stale) {
            Status::Stale.encode(out).unwrap();
            return;
        }
        done(out, &attributes(object, store.files[&object].as_deref()));
        if self.fault == Fault::Trailing {
            out.write_u32(0).unwrap();
        }
    }

    /// Handles are not told of folders, so that they are looked up.
    fn make(
        &self,
        store: &mut Store,
        place: Place<'_>,
        content: Option<Vec<u8>>,
        out: &mut Writer<'_>,
    ) {
        let key = (number(place.directory), place.name.to_vec());
        let status = match self.fault {
            Fault::Fickle if store.names.contains_key(&key) => Some(Status::Exists),
            Fault::ReadOnly => Some(Status::ReadOnly),
            Fault::NoSpace if content.is_some() => Some(Status::NoSpace),
            _ => None,
        };
        if let Some(status) = status {
            refused(out, status);
            return;
        }
        store.last += 1;
        let made = store.last;
        let is_file = content.is_some();
        store.files.insert(made, content);
        assert!(store.names.insert(key, made).is_none(), "a name of its own");
        let created = results::Created {
            object: is_file.then(|| handle(made)),
            attributes: None,
            directory: Wcc::default(),
        };
        done(out, &created);
    }

    fn read(&self, store: &Store, args: &mut Reader<'_>, out: &mut Writer<'_>) {
        let read = arguments::Read::decode(args).unwrap();
        let content = store.files[&number(read.file)].as_deref().unwrap();
        let from = content
            .len()
            .min(usize::try_from(read.offset_bytes).unwrap());
        let asked = match self.fault {
            Fault::Short if read.count_bytes == 5000 => 2500,
            _ => read.count_bytes as usize,
        };
        let to = content.len().min(from + asked);
        let mut data = content[from..to].to_vec();
        if self.is_due(Fault::Content) {
            data[0] ^= 1;
        }
        let told = results::Read {
            attributes: None,
            count_bytes: u32::try_from(data.len()).unwrap(),
            is_end: to == content.len(),
        };
        done(out, &told);
        if self.is_due(Fault::Truncated) {
            return;
        }
        out.write_opaque(&data).unwrap();
    }

    fn write(&self, store: &mut Store, args: &mut Reader<'_>, out: &mut Writer<'_>) -> Option<()> {
        let write = arguments::Write::decode(args).unwrap();
        let mut data = args.read_opaque(2 << 20).unwrap();
        assert!(args.is_at_end(), "nothing behind the data");
        assert_eq!(data.len(), write.count_bytes as usize);
        if self.fault == Fault::Short && data.len() == 5000 {
            data = &data[..2500];
        }
        let content = store.files.get_mut(&number(write.file)).unwrap();
        let content = content.as_mut().unwrap();
        let from = usize::try_from(write.offset_bytes).unwrap();
        if content.len() < from + data.len() {
            content.resize(from + data.len(), 0);
        }
        content[from..from + data.len()].copy_from_slice(data);
        let writes = self.writes.fetch_add(1, Ordering::Relaxed) + 1;
        if (self.fault == Fault::Cut && writes % 100 == 50) || self.is_closing() {
            return None;
        }
        let written = results::Write {
            file: Wcc::default(),
            count_bytes: u32::try_from(data.len()).unwrap(),
            committed: match self.fault {
                Fault::LessStable => Stability::Unstable,
                _ => write.stability,
            },
            verifier: self.verifier(),
        };
        done(out, &written);
        Some(())
    }
}

/// A failure whose results are what became of a folder.
fn refused(out: &mut Writer<'_>, status: Status) {
    status.encode(out).unwrap();
    Wcc::default().encode(out).unwrap();
}

fn done(out: &mut Writer<'_>, results: &impl Encode) {
    Status::Ok.encode(out).unwrap();
    results.encode(out).unwrap();
}
