//! The test files of a load. They are in their own folder in the export, made before the load and removed after it.

use crate::exit::Failure;
use crate::signals::Stop;
use crate::workloads::nfs::Targets;
use crate::workloads::nfs::steps::StepPlan;
use rpcrdma_nfs3::client::caller::{CallFailed, NfsCaller};
use rpcrdma_nfs3::client::reply::{self, ReadData, ReplyError};
use rpcrdma_nfs3::client::request::{self, Request};
use rpcrdma_nfs3::wire::results::Fsinfo;
use rpcrdma_nfs3::wire::types::Place;
use rpcrdma_nfs3::wire::{FileHandle, Status};

/// The files to make.
#[derive(Clone, Debug)]
pub(crate) struct FilesPlan {
    /// Name of the folder.
    pub(crate) folder: String,
    /// Number of files.
    pub(crate) files: u32,
    /// Bytes of each.
    pub(crate) file_bytes: u64,
    pub(crate) seed: u64,
}

/// The folder with its files. The owner must call [`Files::remove`]: dropping removes nothing, because removal needs
/// calls.
#[derive(Debug)]
pub(crate) struct Files {
    root: FileHandle,
    plan: FilesPlan,
    folder: Option<FileHandle>,
    made: u32,
    pub(crate) targets: Targets,
}

/// The server's limits and properties of the file system of `root` (FSINFO).
pub(crate) fn file_system(caller: &mut dyn NfsCaller, root: FileHandle) -> Result<Fsinfo, Failure> {
    let info = call(caller, "FSINFO of the export", &Request::Fsinfo(root))?;
    reply::fsinfo(&info).map_err(|error| told("FSINFO of the export", error))
}

impl Files {
    /// A plan without any files made.
    pub(crate) fn new(root: FileHandle, plan: FilesPlan) -> Self {
        let targets = Targets::new(root, plan.seed);
        Self {
            root,
            plan,
            folder: None,
            made: 0,
            targets,
        }
    }

    /// The root of the export.
    pub(crate) fn root(&self) -> FileHandle {
        self.root
    }

    /// Whether there is anything to remove.
    pub(crate) fn is_there(&self) -> bool {
        self.folder.is_some()
    }

    /// Makes the folder and the files, each as one hole of full size. On failure or `stop`, what exists so far
    /// remains, for [`Files::remove`].
    pub(crate) fn make(&mut self, caller: &mut dyn NfsCaller, stop: &Stop) -> Result<(), Failure> {
        let name = self.plan.folder.clone();
        let place = Place {
            directory: self.root,
            name: name.as_bytes(),
        };
        let folder = make(
            caller,
            &format!("making the folder {name}"),
            &Request::Mkdir(place),
            place,
        )?;
        self.folder = Some(folder);
        for number in 0..self.plan.files {
            if stop.is_asked() {
                break;
            }
            let name = file_name(number);
            let what = format!("making {}/{name}", self.plan.folder);
            let place = Place {
                directory: folder,
                name: name.as_bytes(),
            };
            let file = make(caller, &what, &Request::Create(place), place)?;
            self.made = number + 1;
            self.targets.add(file);
            let resize = Request::Resize(file, self.plan.file_bytes);
            let results = call(caller, &what, &resize)?;
            reply::changed(&results).map_err(|error| told(&what, error))?;
        }
        Ok(())
    }

    /// Commits a file to stable storage. Returns the write verifier, or `None` if there is no such file.
    pub(crate) fn commit(
        &self,
        caller: &mut dyn NfsCaller,
        number: u32,
    ) -> Result<Option<[u8; 8]>, Failure> {
        let what = format!("COMMIT of {}/{}", self.plan.folder, file_name(number));
        let Some(file) = self.targets.file(number) else {
            return Ok(None);
        };
        let results = call(caller, &what, &Request::Commit(file))?;
        let commit = reply::commit(&results).map_err(|error| told(&what, error))?;
        Ok(Some(commit.verifier))
    }

    /// Reads a block back. Returns whether it has the expected content.
    pub(crate) fn check(
        &self,
        caller: &mut dyn NfsCaller,
        plan: &StepPlan,
        (number, block): (u32, u64),
    ) -> Result<bool, Failure> {
        let what = format!("reading {}/{} back", self.plan.folder, file_name(number));
        let Some(file) = self.targets.file(number) else {
            return Ok(true);
        };
        let mut offset = block * u64::from(plan.bytes);
        let end = plan.file_bytes.min(offset + u64::from(plan.bytes));
        while offset < end {
            let piece_bytes = caller.read_bytes_max();
            let bytes = u32::try_from(end - offset).map_or(piece_bytes, |it| it.min(piece_bytes));
            let asked = caller.call_for(&request::read(file, offset, bytes), bytes);
            let results = asked.map_err(|error| failed(&what, error))?;
            let (stream, bulk) = (&results.stream, &results.bulk);
            let read = reply::read(stream, bytes, bulk.len());
            let read = read.map_err(|error| told(&what, error))?;
            let data = match read.data {
                ReadData::Inline(data) => data,
                ReadData::Bulk => bulk.get(..read.count_bytes as usize).unwrap_or(&[]),
            };
            if data.is_empty() || !self.targets.matches(number, offset, data, true) {
                return Ok(false);
            }
            offset += data.len() as u64;
        }
        Ok(true)
    }

    /// Removes the files and the folder. It goes on after a failure and returns the first one.
    pub(crate) fn remove(&mut self, caller: &mut dyn NfsCaller) -> Result<(), Failure> {
        let Some(folder) = self.folder.take() else {
            return Ok(());
        };
        let mut outcome = Ok(());
        for number in 0..self.made {
            let name = file_name(number);
            let place = Place {
                directory: folder,
                name: name.as_bytes(),
            };
            let what = format!("removing {}/{name}", self.plan.folder);
            outcome = outcome.and(remove(caller, &what, &Request::Remove(place)));
        }
        let place = Place {
            directory: self.root,
            name: self.plan.folder.as_bytes(),
        };
        let what = format!("removing the folder {}", self.plan.folder);
        outcome.and(remove(caller, &what, &Request::Rmdir(place)))
    }
}

fn file_name(number: u32) -> String {
    format!("file-{number:04}")
}

fn call(caller: &mut dyn NfsCaller, what: &str, request: &Request<'_>) -> Result<Vec<u8>, Failure> {
    caller.call(request).map_err(|error| failed(what, error))
}

/// The failure of a call without a reply.
fn failed(what: &str, error: CallFailed) -> Failure {
    Failure::failed(format!("{what} failed"))
        .because(error)
        .advice("look at the server: it must be up, and serve NFS version 3 at this address")
}

/// Makes a file or a folder and returns its handle. A server may leave the handle out of its reply; then a LOOKUP
/// asks for it.
fn make(
    caller: &mut dyn NfsCaller,
    what: &str,
    request: &Request<'_>,
    place: Place<'_>,
) -> Result<FileHandle, Failure> {
    let results = caller.call_for(request, 0);
    let results = results.map_err(|error| failed(what, error))?;
    let made = match reply::created(&results.stream) {
        // The first call made it and its reply was lost; this is the repetition.
        Err(ReplyError::Status(Status::Exists)) if results.is_repeated => None,
        made => made.map_err(|error| told(what, error))?,
    };
    if let Some(handle) = made {
        return Ok(handle);
    }
    let results = call(caller, what, &Request::Lookup(place))?;
    reply::lookup(&results).map_err(|error| told(what, error))
}

fn remove(caller: &mut dyn NfsCaller, what: &str, request: &Request<'_>) -> Result<(), Failure> {
    let results = call(caller, what, request)?;
    match reply::changed(&results) {
        // "No such file" is success too: the reply to the first call was lost, and this is the repetition.
        Ok(()) | Err(ReplyError::Status(Status::NoEntry)) => Ok(()),
        Err(error) => Err(told(what, error)),
    }
}

/// The failure of a call that the server refused or answered wrongly.
fn told(what: &str, error: ReplyError) -> Failure {
    let advice = match error {
        ReplyError::Status(Status::Access | Status::NotOwner) => {
            "the export must be writable for --uid and --gid; servers map the superuser to nobody, unless the \
             export says `no_root_squash`"
        }
        ReplyError::Status(Status::ReadOnly) => "export it read-write (`rw`)",
        ReplyError::Status(Status::NoSpace | Status::Quota) => {
            "free some space on the server, or lower --files or --file-size"
        }
        ReplyError::Status(Status::TooBig) => "lower --file-size",
        ReplyError::Status(Status::Exists) => {
            "a run that was killed may have left it there: remove the folder on the server"
        }
        _ => "look at the server's messages",
    };
    Failure::failed(format!("{what} failed"))
        .because(error)
        .advice(advice)
}
