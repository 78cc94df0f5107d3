//! Random operations on one file, each compared with what memory says it should be.
//!
//! `fsx FILE [--operations N] [--seed N] [--size BYTES]`: reads, writes, cuts and extends the file,
//! closes and opens it, renames it, writes it back and forgets what is cached, so that the next read
//! comes from the server. The first difference ends it with exit status 1, and the last operations are
//! told. The same seed makes the same operations.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rpcrdma_testkit::Random;
use rustix::fs::{Advice, fadvise};

/// Operations that are told after a difference.
const TOLD: usize = 20;

struct Options {
    path: PathBuf,
    operations: u64,
    seed: u64,
    size_bytes: u64,
}

impl Options {
    fn parse(mut args: impl Iterator<Item = String>) -> Option<Self> {
        let mut options = Self {
            path: args.next()?.into(),
            operations: 100_000,
            seed: 1,
            size_bytes: 256 * 1024,
        };
        while let Some(name) = args.next() {
            let value = args.next()?.parse().ok()?;
            match name.as_str() {
                "--operations" => options.operations = value,
                "--seed" => options.seed = value,
                "--size" if value > 0 => options.size_bytes = value,
                _ => return None,
            }
        }
        Some(options)
    }
}

struct Checker {
    options: Options,
    random: Random,
    file: File,
    /// Whether it has its second name.
    renamed: bool,
    expected: Vec<u8>,
    told: VecDeque<String>,
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).open(path)
}

impl Checker {
    fn new(options: Options) -> io::Result<Self> {
        let file = open(&options.path)?;
        file.set_len(0)?;
        Ok(Self {
            random: Random(options.seed),
            file,
            renamed: false,
            expected: Vec::new(),
            told: VecDeque::new(),
            options,
        })
    }

    fn path(&self) -> PathBuf {
        let mut path = self.options.path.clone().into_os_string();
        if self.renamed {
            path.push(".renamed");
        }
        path.into()
    }

    fn tell(&mut self, number: u64, what: String) {
        if self.told.len() == TOLD {
            self.told.pop_front();
        }
        self.told.push_back(format!("{number}: {what}"));
    }

    fn below(&mut self, end: u64) -> u64 {
        self.random.next() % end.max(1)
    }

    /// Where an operation begins and how long it is; short ones and long ones, on whole pages and not.
    fn range(&mut self) -> (u64, usize) {
        let size = self.options.size_bytes;
        let mut start = self.below(size);
        let mut bytes = self.below(size - start) + 1;
        match self.below(4) {
            0 => bytes = bytes.min(1 + self.below(100)),
            1 => bytes = bytes.min(4096 * 3),
            2 => start -= start % 4096,
            _ => {}
        }
        let bytes = bytes.min(size - start).max(1);
        (start, usize::try_from(bytes).expect("a length in memory"))
    }

    fn operation(&mut self, number: u64) -> io::Result<()> {
        match self.below(100) {
            0..45 => self.write(number),
            45..80 => self.read(number),
            80..90 => self.set_len(number),
            90..94 => self.forget(number),
            94..98 => self.open_again(number),
            _ => self.rename(number),
        }
    }

    fn write(&mut self, number: u64) -> io::Result<()> {
        let (start, bytes) = self.range();
        self.tell(number, format!("write {bytes} at {start}"));
        let at = usize::try_from(start).expect("an offset in memory");
        let first = self.random.next();
        let data: Vec<u8> = (0..bytes)
            .map(|index| {
                first
                    .rotate_left(u32::try_from(index % 61).unwrap_or(0))
                    .to_le_bytes()[0]
            })
            .collect();
        let end = at + bytes;
        self.expected.resize(self.expected.len().max(end), 0);
        self.expected[at..end].copy_from_slice(&data);
        self.file.write_all_at(&data, start)
    }

    fn read(&mut self, number: u64) -> io::Result<()> {
        let (start, bytes) = self.range();
        self.tell(number, format!("read {bytes} at {start}"));
        self.compare(start, bytes)
    }

    fn compare(&self, start: u64, bytes: usize) -> io::Result<()> {
        let at = usize::try_from(start).expect("an offset in memory");
        let from = at.min(self.expected.len());
        let expected = &self.expected[from..(at + bytes).min(self.expected.len()).max(from)];
        let mut found = vec![0xee; bytes];
        let mut read = 0;
        while read < bytes {
            let at = start + u64::try_from(read).expect("a length");
            match self.file.read_at(&mut found[read..], at)? {
                0 => break,
                count => read += count,
            }
        }
        if read != expected.len() {
            return Err(io::Error::other(format!(
                "{read} bytes at {start}, and not {}",
                expected.len()
            )));
        }
        let difference = expected.iter().zip(&found).position(|(a, b)| a != b);
        match difference {
            Some(index) => Err(io::Error::other(format!(
                "byte {} is {:#04x}, and not {:#04x}",
                at + index,
                found[index],
                expected[index]
            ))),
            None => Ok(()),
        }
    }

    fn set_len(&mut self, number: u64) -> io::Result<()> {
        let (length, _) = self.range();
        self.tell(number, format!("set length to {length}"));
        let length_bytes = usize::try_from(length).expect("a length in memory");
        self.expected.resize(length_bytes, 0);
        self.file.set_len(length)?;
        self.check_length()
    }

    fn check_length(&self) -> io::Result<()> {
        let length = self.file.metadata()?.len();
        if usize::try_from(length) != Ok(self.expected.len()) {
            let expected = self.expected.len();
            let message = format!("the length is {length}, and not {expected}");
            return Err(io::Error::other(message));
        }
        Ok(())
    }

    fn forget(&mut self, number: u64) -> io::Result<()> {
        self.tell(number, "write back and forget".to_owned());
        self.file.sync_all()?;
        fadvise(&self.file, 0, None, Advice::DontNeed)?;
        self.check_length()?;
        self.compare(0, self.expected.len() + 1)
    }

    fn open_again(&mut self, number: u64) -> io::Result<()> {
        self.tell(number, "close and open".to_owned());
        self.file = open(&self.path())?;
        self.check_length()
    }

    fn rename(&mut self, number: u64) -> io::Result<()> {
        self.tell(number, "rename".to_owned());
        let from = self.path();
        self.renamed = !self.renamed;
        std::fs::rename(from, self.path())
    }

    fn run(&mut self) -> io::Result<()> {
        for number in 0..self.options.operations {
            self.operation(number)?;
        }
        self.forget(self.options.operations)?;
        std::fs::remove_file(self.path())
    }
}

fn main() -> ExitCode {
    let Some(options) = Options::parse(std::env::args().skip(1)) else {
        eprintln!("usage: fsx FILE [--operations N] [--seed N] [--size BYTES]");
        return ExitCode::from(2);
    };
    let (operations, seed) = (options.operations, options.seed);
    let mut checker = match Checker::new(options) {
        Ok(checker) => checker,
        Err(error) => {
            eprintln!("fsx: the file cannot be made: {error}");
            return ExitCode::FAILURE;
        }
    };
    match checker.run() {
        Ok(()) => {
            println!("fsx: {operations} operations of seed {seed}, no difference");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("fsx: {error}");
            eprintln!("fsx: the last operations:");
            for operation in &checker.told {
                eprintln!("    {operation}");
            }
            ExitCode::FAILURE
        }
    }
}
