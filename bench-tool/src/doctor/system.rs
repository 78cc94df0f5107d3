//! The files by which the kernel describes a machine, below a root that tests can move.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::Access;

use crate::cli::values::core_list;

/// `/proc`, `/sys` and `/dev`, or a copy of them.
#[derive(Clone, Debug)]
pub struct System {
    root: PathBuf,
}

/// A limit of this process; `None` is "unlimited".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// What is in force.
    pub soft: Option<u64>,
    /// How far this process may raise it.
    pub hard: Option<u64>,
}

impl System {
    /// What lies below `root`: `/` for this machine.
    #[must_use]
    pub fn below(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
        }
    }

    /// Whether this is the machine itself, whose devices can be asked, and no copy of its files.
    #[must_use]
    pub fn is_real(&self) -> bool {
        self.root == Path::new("/")
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// The text of a file without the space around it; `None` when there is no such file.
    #[must_use]
    pub fn text(&self, path: &str) -> Option<String> {
        let text = fs::read_to_string(self.path(path)).ok()?;
        Some(text.trim().to_owned())
    }

    /// The number in a file.
    #[must_use]
    pub fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.parse().ok()
    }

    /// The names in a directory, sorted; none when there is no such directory.
    #[must_use]
    pub fn names(&self, path: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.path(path)) else {
            return Vec::new();
        };
        let mut names: Vec<String> = entries
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort_unstable();
        names
    }

    /// Whether the path exists.
    #[must_use]
    pub fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// Whether this process may read and write the path.
    #[must_use]
    pub fn is_usable(&self, path: &str) -> bool {
        rustix::fs::access(self.path(path), Access::READ_OK | Access::WRITE_OK).is_ok()
    }

    /// A list of cores in a file (`0-3,8`); `None` when the file is not there, none when it is empty.
    #[must_use]
    pub fn cores(&self, path: &str) -> Option<Vec<usize>> {
        let text = self.text(path)?;
        if text.is_empty() {
            return Some(Vec::new());
        }
        core_list(&text).ok().map(|list| list.0)
    }

    /// The cores that this process may use.
    #[must_use]
    pub fn cores_allowed(&self) -> Option<Vec<usize>> {
        let list = self.status("Cpus_allowed_list")?;
        core_list(&list).ok().map(|list| list.0)
    }

    /// A field of `/proc/self/status`.
    #[must_use]
    pub fn status(&self, name: &str) -> Option<String> {
        field(&self.text("/proc/self/status")?, name)
    }

    /// A field of `/proc/meminfo`, in bytes.
    #[must_use]
    pub fn meminfo_bytes(&self, name: &str) -> Option<u64> {
        let value = field(&self.text("/proc/meminfo")?, name)?;
        value
            .strip_suffix("kB")?
            .trim()
            .parse::<u64>()
            .ok()?
            .checked_mul(1024)
    }

    /// A flag of the first processor in `/proc/cpuinfo`; `None` where there are no flags.
    #[must_use]
    pub fn has_cpu_flag(&self, flag: &str) -> Option<bool> {
        let flags = field(&self.text("/proc/cpuinfo")?, "flags")?;
        Some(flags.split(' ').any(|found| found == flag))
    }

    /// A line of `/proc/self/limits`, as `Max open files`.
    #[must_use]
    pub fn limit(&self, name: &str) -> Option<Limit> {
        let text = self.text("/proc/self/limits")?;
        let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
        let mut words = rest.split_whitespace().map(|word| match word {
            "unlimited" => Some(None),
            number => number.parse().ok().map(Some),
        });
        Some(Limit {
            soft: words.next()??,
            hard: words.next()??,
        })
    }
}

/// The value of a line `name: value`; the name may be followed by tabs, as in `/proc/cpuinfo`.
pub(crate) fn field(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A machine made of files, in a directory that goes with it.
    pub(crate) struct FakeMachine {
        root: PathBuf,
    }

    impl FakeMachine {
        /// A machine of which nothing is known.
        pub(crate) fn empty() -> Self {
            use std::sync::atomic::{AtomicU32, Ordering};
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!("bench-tool-doctor-{}-{number}", std::process::id());
            let root = std::env::temp_dir().join(name);
            fs::create_dir_all(&root).unwrap();
            Self { root }
        }

        /// A machine on which everything is as it should be; it has no RDMA device.
        pub(crate) fn good() -> Self {
            let machine = Self::empty();
            for (path, text) in [
                ("proc/sys/kernel/osrelease", "6.12.3"),
                (
                    "proc/self/limits",
                    "Limit   Soft Limit  Hard Limit  Units\n\
                     Max open files            1024   1048576   files\n\
                     Max locked memory         unlimited  unlimited  bytes",
                ),
                (
                    "proc/self/status",
                    "Name:\tx\nCapEff:\t0000000000000000\nCpus_allowed_list:\t0-3",
                ),
                ("proc/self/cgroup", "0::/user.slice"),
                ("sys/fs/cgroup/user.slice/cpu.max", "max 100000"),
                (
                    "proc/meminfo",
                    "MemTotal: 16000000 kB\nMemAvailable: 12000000 kB",
                ),
                (
                    "proc/cpuinfo",
                    "processor\t: 0\nflags\t\t: fpu constant_tsc nonstop_tsc",
                ),
                ("proc/stat", "cpu  1000 0 1000 98000 0 0 0 0 0 0"),
                ("sys/devices/system/cpu/online", "0-3"),
                ("sys/devices/system/cpu/isolated", "2-3"),
                (
                    "sys/devices/system/clocksource/clocksource0/current_clocksource",
                    "tsc",
                ),
                (
                    "sys/kernel/mm/transparent_hugepage/enabled",
                    "always [madvise] never",
                ),
                (
                    "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
                    "4096",
                ),
                (
                    "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages",
                    "4096",
                ),
                (
                    "sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages",
                    "0",
                ),
            ] {
                machine.set(path, text);
            }
            machine
        }

        /// Writes a file.
        pub(crate) fn set(&self, path: &str, text: &str) {
            let path = self.root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }

        pub(crate) fn system(&self) -> System {
            System::below(&self.root)
        }

        pub(crate) fn root(&self) -> &Path {
            &self.root
        }
    }

    impl Drop for FakeMachine {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.root);
        }
    }

    #[test]
    fn files_are_read_below_the_root() {
        let machine = FakeMachine::good();
        let system = machine.system();
        assert!(!system.is_real() && System::below(Path::new("/")).is_real());
        assert_eq!(
            system.number("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"),
            Some(4096)
        );
        assert_eq!(
            system.cores("/sys/devices/system/cpu/isolated"),
            Some(vec![2, 3])
        );
        assert_eq!(system.status("Cpus_allowed_list").as_deref(), Some("0-3"));
        assert_eq!(
            system.meminfo_bytes("MemAvailable"),
            Some(12_000_000 * 1024)
        );
        assert_eq!(system.has_cpu_flag("nonstop_tsc"), Some(true));
        assert_eq!(system.has_cpu_flag("hypervisor"), Some(false));
        assert_eq!(
            system.names("/sys/kernel/mm/hugepages"),
            ["hugepages-2048kB"]
        );
        let (open, locked) = (
            system.limit("Max open files"),
            system.limit("Max locked memory"),
        );
        assert_eq!(
            open,
            Some(Limit {
                soft: Some(1024),
                hard: Some(1 << 20)
            })
        );
        assert_eq!(
            locked,
            Some(Limit {
                soft: None,
                hard: None
            })
        );
    }

    #[test]
    fn what_is_not_there_or_makes_no_sense_is_not_known() {
        let machine = FakeMachine::empty();
        let system = machine.system();
        assert_eq!(system.text("/proc/stat"), None);
        assert_eq!(system.limit("Max open files"), None);
        assert_eq!(system.cores("/sys/devices/system/cpu/isolated"), None);
        assert!(system.names("/sys/class/infiniband").is_empty());
        assert!(!system.exists("/dev/infiniband") && !system.is_usable("/dev/infiniband/rdma_cm"));
        machine.set("proc/meminfo", "MemAvailable: many kB\nMemTotal 12");
        machine.set("proc/self/limits", "Max open files  few  many  files");
        machine.set("sys/devices/system/cpu/isolated", "");
        assert_eq!(system.meminfo_bytes("MemAvailable"), None);
        assert_eq!(system.meminfo_bytes("MemTotal"), None);
        assert_eq!(system.limit("Max open files"), None);
        assert_eq!(
            system.cores("/sys/devices/system/cpu/isolated"),
            Some(vec![])
        );
    }
}
